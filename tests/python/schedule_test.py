"""What is learned of the order and the times of saved tensors."""

from __future__ import annotations

import random
import unittest

from spillway._offload.holding import NO_BOUND, Holding, Save, plan, waits
from spillway._offload.schedule import FIRST_DEPTH, LATE_NS, MOST_DEPTH, Schedule, Use

MIB = 1 << 20
COUNT = 24


class Device:
    """A model of COUNT layers of one tensor each: a layer takes `layer_ns` forward, twice that backward."""

    def __init__(self, layer_ns: float, copy_ns: float) -> None:
        self.layer_ns, self.copy_ns = layer_ns, copy_ns
        self.refused: set[int] = set()  # for which there is no room elsewhere

    def step(self, schedule: Schedule) -> list[Use]:
        """Runs one step under the schedule, on a virtual clock; its uses in the order asked for."""
        saved = list(range(COUNT))
        uses = {key: Use(key, MIB) for key in saved}
        now = out = back = 0.0
        holding: Holding[float] | None = Holding(schedule.most_held)
        gone: list[float] = []
        for key in saved:
            now += self.layer_ns
            uses[key].saved_ns = now
            uses[key].is_refused = key in self.refused and key not in schedule.stays
            leaves = key not in schedule.stays and not uses[key].is_refused
            if leaves:
                out = max(out, now) + self.copy_ns
                uses[key].out_ns = self.copy_ns
                gone.append(out)
            if not schedule.is_as_planned(key, MIB, uses[key].is_refused):
                holding = None
            last = None if holding is None else holding.add(MIB, out if leaves else None)
            if last is not None and last > now:
                uses[key].wait_ns, now = last - now, last
        self.held = COUNT - sum(time <= now for time in gone)
        forward_ns = now
        coming: dict[int, float] = {}

        def fetch(key: int) -> None:
            nonlocal back
            if key not in schedule.stays and key not in self.refused and key not in coming:
                back = max(back, now) + self.copy_ns
                coming[key] = back

        for key in reversed(saved):
            use = uses[key]
            fetch(key)
            for following in schedule.after(key, saved):
                assert isinstance(following, int)
                fetch(following)
            use.needed_ns = now
            if key in coming:
                use.came_ns, use.in_ns = coming[key], self.copy_ns
                use.stall_ns = max(0.0, coming[key] - now)
                now = max(now, coming[key])
            now += 2 * self.layer_ns
        self.forward_ns, self.step_ns = forward_ns, now
        return [uses[key] for key in reversed(saved)]


def run(device: Device, steps: int, room: int = 1 << 40, most_wait: float = 0.0) -> tuple[Schedule, list[list[Use]]]:
    schedule, done = Schedule(most_wait), []
    for _ in range(steps):
        uses = device.step(schedule)
        done.append(uses)
        schedule.learn_order([use.key for use in uses])
        schedule.learn(uses, room)
    return schedule, done


def late(uses: list[Use]) -> int:
    return sum((use.stall_ns or 0) > LATE_NS for use in uses)


class Fuzz(unittest.TestCase):
    def test_uses_on_several_streams_and_orders_that_change(self) -> None:
        """Times that are not in the order asked for, and plans of an order that is no more."""
        for seed in range(300):
            chance = random.Random(seed)
            schedule = Schedule(0.025)
            for _ in range(4):
                keys = chance.sample(range(30), chance.randint(1, 30))
                schedule.learn_order(keys)
                for key in keys:
                    schedule.after(key, keys)
                schedule.learn([timed(key, chance) for key in keys], chance.randint(0, 40) * MIB)

    def test_what_is_refused_is_planned_as_what_stays(self) -> None:
        uses = [Use(key, MIB, saved_ns=100.0 * key, needed_ns=1e4 - 100.0 * key, out_ns=30.0, in_ns=30.0)
                for key in range(COUNT)][::-1]  # fmt: skip
        for use in uses[: COUNT // 2]:
            use.is_refused, use.out_ns, use.in_ns = True, None, None
        schedule = Schedule(0.025)
        schedule.learn_order([use.key for use in uses])
        schedule.learn(uses, 1 << 40)
        refused = [use.key for use in uses if use.is_refused and use.key not in schedule.stays]
        self.assertTrue(refused)
        for key in refused:
            self.assertTrue(schedule.is_as_planned(key, MIB, True))
        going = next(use.key for use in uses if not use.is_refused)
        self.assertTrue(schedule.is_as_planned(going, MIB))
        self.assertFalse(schedule.is_as_planned(going, MIB, True))


def timed(key: int, chance: random.Random) -> Use:
    saved = chance.uniform(0, 1e6)
    use = Use(key, MIB, saved_ns=saved, needed_ns=saved + chance.uniform(0, 1e6), out_ns=chance.uniform(1, 1e5))
    use.in_ns = chance.uniform(1, 1e5)
    use.stall_ns = chance.choice([None, 0.0, 1e4])
    return use


class Order(unittest.TestCase):
    def test_before_the_first_step_is_known_it_is_the_reverse(self) -> None:
        schedule = Schedule()
        self.assertEqual(schedule.after("e", "abcdef"), list("dcba")[:FIRST_DEPTH])
        self.assertEqual(schedule.after("a", "abcdef"), [])
        self.assertEqual(schedule.after("z", "abcdef"), [])

    def test_the_last_steps_order_is_followed(self) -> None:
        schedule = Schedule(depth=2)
        schedule.learn_order("bdac")
        self.assertEqual(schedule.after("d", "abcd"), ["a", "c"])
        self.assertEqual(schedule.after("c", "abcd"), [])
        # What was never asked for is no guess.
        self.assertEqual(schedule.after("x", "abcdx"), [])

    def test_a_step_that_asked_for_nothing_teaches_nothing(self) -> None:
        schedule = Schedule()
        schedule.learn_order("ab")
        schedule.learn_order("")
        schedule.learn([], 0)
        self.assertEqual(schedule.order, ["a", "b"])


class Depth(unittest.TestCase):
    def test_nothing_is_late_after_three_steps_where_the_link_keeps_up(self) -> None:
        for share in (0.1, 0.5, 0.9):
            with self.subTest(f"a copy takes {share} of a layer"):
                _, done = run(Device(1e6, share * 1e6), 8)
                for uses in done[3:]:
                    self.assertEqual(late(uses), 0)

    def test_early_ones_come_later_until_one_is_late_again(self) -> None:
        schedule, done = run(Device(1e6, 0.05e6), 20)
        self.assertEqual(schedule.depth, 1)
        self.assertEqual(late(done[-1]), 0)

    def test_it_does_not_swing(self) -> None:
        """A copy takes as long as two layers backward: a depth of 1 would be late."""
        schedule = Schedule(depth=1)
        device = Device(1e6, 0.9e6)
        depths = []
        for _ in range(12):
            schedule.learn(device.step(schedule), 0)
            depths.append(schedule.depth)
        self.assertEqual(len(set(depths[4:])), 1, depths)

    def test_it_has_a_bound(self) -> None:
        schedule, _ = run(Device(1e6, 100e6), 20, room=0)
        self.assertLessEqual(schedule.depth, MOST_DEPTH)


class Stays(unittest.TestCase):
    def test_what_comes_back_at_once_never_leaves(self) -> None:
        schedule, _ = run(Device(1e6, 0.1e6), 4)
        self.assertEqual(schedule.stays, set(range(COUNT - schedule.depth, COUNT)))

    def test_what_the_link_cannot_hide_stays_and_nothing_is_late(self) -> None:
        schedule, done = run(Device(1e6, 3e6), 8)
        self.assertEqual(late(done[-1]), 0)
        self.assertGreater(len(schedule.stays), COUNT // 4)
        self.assertLess(len(schedule.stays), COUNT)

    def test_a_faster_link_takes_more(self) -> None:
        counts = [len(run(Device(1e6, copy), 8)[0].stays) for copy in (0.5e6, 2e6, 4e6)]
        self.assertEqual(counts, sorted(counts))

    def test_room_is_not_exceeded(self) -> None:
        schedule = Schedule()
        device = Device(1e6, 6e6)
        schedule.learn(device.step(schedule), room=2 * MIB)
        self.assertEqual(len(schedule.stays), schedule.depth + 2)


class Waits(unittest.TestCase):
    def test_less_is_held_for_no_more_time_than_allowed(self) -> None:
        for copy in (1.5e6, 3e6, 6e6):
            for share in (0.02, 0.05, 0.2):
                with self.subTest(f"a copy takes {copy} ns, {share} of the time may be waited"):
                    free, patient = Device(1e6, copy), Device(1e6, copy)
                    run(free, 8)
                    schedule, done = run(patient, 8, most_wait=share)
                    self.assertLessEqual(patient.step_ns, (1 + share) * free.step_ns)
                    self.assertEqual(late(done[-1]), 0)
                    # By what the link carries in that time, but for one that is on its way and those that stay anyway.
                    carried = int(0.9 * share * free.step_ns / copy)
                    self.assertLessEqual(patient.held, max(free.held - carried, len(schedule.stays)) + 1)

    def test_it_does_not_swing(self) -> None:
        schedule, bounds = Schedule(0.1), []
        device = Device(1e6, 3e6)
        for _ in range(12):
            uses = device.step(schedule)
            schedule.learn_order([use.key for use in uses])
            schedule.learn(uses, 1 << 40)
            bounds.append(schedule.most_held)
        self.assertEqual(len(set(bounds[4:])), 1, bounds)

    def test_nothing_waits_where_the_link_keeps_up(self) -> None:
        schedule, done = run(Device(1e6, 0.5e6), 4, most_wait=0.1)
        self.assertEqual(schedule.most_held, NO_BOUND)
        self.assertEqual(sum(use.wait_ns for use in done[-1]), 0)

    def test_not_without_leave(self) -> None:
        schedule, _ = run(Device(1e6, 3e6), 4)
        self.assertEqual(schedule.most_held, NO_BOUND)

    def test_waits_before_gaps_are_counted(self) -> None:
        """Two bursts that are alike, with time for all copies between them: each costs its own wait."""
        burst = [Save(float(time), 1, 4.0) for time in range(10)]
        saves = burst + [Save(save.time + 1000, 1, 4.0) for save in burst]
        bound, waited = plan(saves, 8.0)
        self.assertLess(bound, plan(burst, 0.01)[0])
        self.assertLessEqual(waited[-1], 8.08)
        self.assertEqual(waited, waits(saves, bound))

    def test_what_is_refused_costs_no_more_than_allowed(self) -> None:
        """It is held like what stays, though it was to leave: in the step that learns of it and in those after."""
        share = 0.025
        for refused in (range(6), range(0, COUNT, 3), range(COUNT)):
            with self.subTest(refused=list(refused)):
                free, patient = Device(1e6, 3e6), Device(1e6, 3e6)
                schedules = Schedule(), Schedule(share)
                for number in range(12):
                    for device, schedule in zip((free, patient), schedules, strict=True):
                        device.refused = set(refused) if number >= 6 else set()
                        uses = device.step(schedule)
                        schedule.learn_order([use.key for use in uses])
                        schedule.learn(uses, 0)
                    if number >= 2:
                        self.assertLessEqual(patient.step_ns, (1 + share) * free.step_ns, f"step {number}")

    def test_other_sizes_are_not_as_planned(self) -> None:
        schedule, _ = run(Device(1e6, 3e6), 4)
        self.assertTrue(schedule.is_as_planned(0, MIB))
        self.assertFalse(schedule.is_as_planned(0, MIB + 1) or schedule.is_as_planned("other", MIB))


if __name__ == "__main__":
    unittest.main()
