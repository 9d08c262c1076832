"""The marker of pytest: @pytest.mark.limit_device_memory("2GiB"). pytest finds this module by itself.

It is all that a session without the marker loads: spillway and PyTorch are imported for a test that bears it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

MARKER = "limit_device_memory"
HELP = (
    f"{MARKER}(size): the test fails where it has more device memory live than this, such as '2GiB', above what was "
    "live before. Where there is no GPU it runs on a simulated device."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("spillway")
    group.addoption(
        "--no-device-dryrun",
        action="store_true",
        help=f"tests with {MARKER} are skipped, not run on a simulated device, where there is no GPU",
    )
    parser.addini("spillway_gpu_memory", f"the simulated device of tests with {MARKER} has so much", default="80GiB")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", HELP)


def pytest_collection_finish(session: pytest.Session) -> None:
    """As the items are that will run."""
    marked = [item for item in session.items if item.get_closest_marker(MARKER) is not None]
    if marked:
        from spillway.integrations.pytest_plugin import Limits

        session.config.pluginmanager.register(Limits(session.config, marked), "spillway_limits")
