# Shared by the scripts beside it (source it): where the project is, and installing what it needs. Every step looks first
# and says what it does, so a second run installs nothing and prints nothing.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root" || exit 1
venv="$root/.venv"

torch_version=2.11.0
other_torch_versions="2.12.1 2.13.0 2.14.1 2.15.0" # whose extensions a release has too
cuda_runtime_version=13.0.96
cuda_crt_version=13.0.88
cccl_version=13.3.5.0.6
oldest_cmake=3.25
pip_cmake_version=3.31.6

say() { printf '%s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else die "root rights are needed for: $*"
  fi
}

# install_packages LIST...: files with a package in each line. Without dpkg the build itself finds out what is missing: other
# distributions name the packages differently.
install_packages() {
  command -v dpkg-query >/dev/null || return 0
  local missing=() package
  while read -r package; do
    case "$package" in ''|'#'*) continue ;; esac
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done < <(cat "$@")
  [ "${#missing[@]}" -gt 0 ] || return 0
  say "installing packages: ${missing[*]}"
  as_root true
  local log; log="$(mktemp)"
  if ! { as_root apt-get update -q && as_root env DEBIAN_FRONTEND=noninteractive \
         apt-get install -y -q --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    die "apt-get could not install: ${missing[*]} (its output ends above; all of it is in $log)"
  fi
  rm -f "$log"
}

# make_venv [FOLDER]: with the system's own interpreter, as the packages above give it the venv module.
make_venv() {
  local folder="${1:-$venv}"
  [ -x "$folder/bin/python" ] && return 0
  local python=/usr/bin/python3
  [ -x "$python" ] || python=python3
  say "creating ${folder#"$root/"}"
  "$python" -m venv "$folder" || die "$python -m venv failed; is python3-venv installed?"
}

# pip_install FOLDER WHAT ARGUMENTS...: into the environment in FOLDER; pip's output is shown only where it fails.
pip_install() {
  local folder="$1" what="$2" log; shift 2
  log="$(mktemp)"
  say "installing into ${folder#"$root/"}: $what"
  if ! "$folder/bin/python" -m pip install --disable-pip-version-check --no-input "$@" >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    die "pip could not install $what (its output ends above; all of it is in $log)"
  fi
  rm -f "$log"
}

has_wheel() { compgen -G "$1/$2.dist-info" >/dev/null; }

# install_requirements FOLDER LIST [PIP'S ARGUMENT...]: pinned Python packages, where the list has changed since.
install_requirements() {
  local installed; installed="$1/$(basename "$2" .txt).installed"
  cmp -s "$2" "$installed" && return 0
  pip_install "$1" "the packages of $2" --no-deps -r "$2" "${@:3}"
  cp "$2" "$installed"
}

# install_torch FOLDER VERSION: PyTorch's wheel, and beside it only what its import needs.
install_torch() {
  local packages=("$1"/lib/python3*/site-packages)
  has_wheel "${packages[0]}" "torch-$2*" || pip_install "$1" "torch $2 (530 MB)" --no-deps "torch==$2"
  install_requirements "$1" scripts/requirements.txt
}

# cuda.h and the headers that the simulated runtime is built with; no library.
install_cuda_headers() {
  local headers="$venv/cuda-headers"
  if ! has_wheel "$headers" "nvidia_cuda_runtime-$cuda_runtime_version" ||
     ! has_wheel "$headers" "nvidia_cuda_crt-$cuda_crt_version"; then
    pip_install "$venv" "CUDA headers $cuda_runtime_version" --no-deps --upgrade --target "$headers" \
      "nvidia-cuda-runtime==$cuda_runtime_version" "nvidia-cuda-crt==$cuda_crt_version"
  fi
}

# In a folder of its own: pip replaces a folder that it finds.
install_cccl_headers() {
  has_wheel "$venv/cccl-headers" "nvidia_cuda_cccl-$cccl_version" ||
    pip_install "$venv" "CCCL's headers $cccl_version" --no-deps --upgrade --target "$venv/cccl-headers" \
      "nvidia-cuda-cccl==$cccl_version"
}

# Ubuntu 22.04's cmake is older than the presets need.
install_cmake() {
  local version=0
  command -v cmake >/dev/null && version="$(cmake --version | awk 'NR == 1 { print $3 }')"
  [ "$(printf '%s\n' "$oldest_cmake" "$version" | sort -V | head -n 1)" = "$oldest_cmake" ] && return 0
  [ -x "$venv/bin/cmake" ] || pip_install "$venv" "cmake $pip_cmake_version" "cmake==$pip_cmake_version"
  PATH="$venv/bin:$PATH"
}

# What building and running Spillway needs.
install_for_use() {
  install_packages scripts/packages.txt
  make_venv
  install_torch "$venv" "$torch_version"
  install_cuda_headers
  install_cmake
}

# And what only tests need.
install_for_tests() {
  install_packages scripts/packages.txt scripts/packages-test.txt
  install_for_use
  install_requirements "$venv" scripts/requirements-test.txt
  install_requirements "$venv" scripts/requirements-newest.txt --upgrade --no-compile --target "$venv/newest"
  install_requirements "$venv" scripts/requirements-docs.txt
  install_cccl_headers
}

# configure PRESET [FOLDER [OPTION...]]: cmake's own output is shown only where it fails.
configure() {
  local preset="$1" dir="${2:-build/$1}"
  mkdir -p "$dir"
  local log="$dir/configure.log"
  if ! cmake --preset "$preset" -B "$dir" "${@:3}" >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    die "cmake --preset $preset failed (its output ends above; all of it is in $log)"
  fi
}

# count_steps: reads what ninja says; its count as it goes on a terminal, a line for each tenth elsewhere.
count_steps() {
  local line done all tenth=0 started=$SECONDS
  while read -r line; do
    [[ "$line" =~ ^\[([0-9]+)/([0-9]+)\] ]] || continue
    done="${BASH_REMATCH[1]}" all="${BASH_REMATCH[2]}"
    if [ -t 1 ]; then
      printf '\r  %d of %d, %d s ' "$done" "$all" "$((SECONDS - started))"
    elif [ "$((done * 10 / all))" -gt "$tenth" ]; then
      tenth=$((done * 10 / all))
      say "  $done of $all, $((SECONDS - started)) s"
    fi
  done
  if [ -t 1 ] && [ -n "${all:-}" ]; then printf '\n'; fi
}

# build FOLDER [TARGET...]: the compiler's output is in FOLDER/build.log, and shown only where it fails. Needs pipefail.
build() {
  local dir="$1" targets=(); shift
  [ $# -eq 0 ] || targets=(--target "$@")
  say "building $dir (output: $dir/build.log)"
  if cmake --build "$dir" -j "$(nproc)" "${targets[@]}" 2>&1 | tee "$dir/build.log" | count_steps; then return 0; fi
  grep -E -A 12 'error|FAILED' "$dir/build.log" | head -n 60 >&2
  return 1
}
