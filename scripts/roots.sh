# Bare roots of Debian, for scripts that prove what README promises a stranger (source it after lib.sh). Needs root rights,
# debootstrap, and a network with Debian's packages and Python's. The bare root and what was downloaded are kept in
# $SPILLWAY_FRESH (~/.cache/spillway-fresh), copies of the root as well until they are dropped; the compiler's cache is this
# machine's.

release=bookworm
store="${SPILLWAY_FRESH:-${XDG_CACHE_HOME:-$HOME/.cache}/spillway-fresh}"
passed=0
failed=0

cannot() { say "bare roots cannot be had here: $*"; exit 77; }

# need_roots ARGUMENT...: of the script that calls it. It starts once more in namespaces of its own, so that whatever ends it
# leaves neither mounts nor processes behind. Exit code 77 where that, or root rights, or debootstrap are not to be had.
need_roots() {
  [ "$(id -u)" = 0 ] || cannot "root rights are needed"
  command -v debootstrap >/dev/null || cannot "debootstrap is not installed"
  # The first process of a namespace ignores what it has no trap for.
  trap 'exit 143' TERM
  trap 'exit 130' INT
  if [ -z "${SPILLWAY_INSIDE:-}" ]; then
    unshare --mount --pid --fork true 2>/dev/null || cannot "the kernel gives no namespace for mounts and processes"
    SPILLWAY_INSIDE=1 exec unshare --mount --pid --fork --kill-child "$root/scripts/${0##*/}" "$@"
  fi
  mkdir -p "$store"/{archives/partial,pip} || cannot "$store cannot be made"
  exec 9>"$store/lock"
  flock -n 9 || cannot "another run has those in $store"
}

# check WHAT COMMAND...: counts it; its output is in $store/check.log, and shown only where it fails.
check() {
  local what="$1" started=$SECONDS; shift
  if "$@" >"$store/check.log" 2>&1 </dev/null; then
    say "ok      $what ($((SECONDS - started)) s)"
    passed=$((passed + 1))
  else
    tail -n 40 "$store/check.log"
    say "FAILED  $what"
    failed=$((failed + 1))
    return 1
  fi
}

# A week old at most: packages that are installed into copies of it are of the day.
make_bare_root() {
  find "$store/$release" -maxdepth 0 -mtime +7 -exec rm -rf {} + 2>/dev/null
  [ -d "$store/$release" ] && return 0
  say "making a bare root of Debian $release"
  rm -rf "$store/$release.new"
  debootstrap --variant=minbase "$release" "$store/$release.new" >"$store/debootstrap.log" 2>&1 ||
    cannot "debootstrap failed: $(tail -n 1 "$store/debootstrap.log")"
  # Where this server has packages, it has their security updates too.
  local sources="$store/$release.new/etc/apt/sources.list"
  sed "s|/debian\(/*\) $release |/debian-security\1 $release-security |" "$sources" >"$store/security.list"
  cat "$store/security.list" >>"$sources"
  mv "$store/$release.new" "$store/$release"
}

# new_root NAME: a copy of the bare root, with what lets it reach the network and the caches.
new_root() {
  local folder="$store/$1" cache
  drop_root "$1"
  cp -a --reflink=auto "$store/$release" "$folder"
  cp /etc/resolv.conf "$folder/etc/resolv.conf"
  # Every machine has these names; debootstrap leaves them to an installer.
  printf '127.0.0.1 localhost\n::1 localhost\n' >"$folder/etc/hosts"
  mkdir -p "$folder"/root/.cache/{pip,ccache}
  mount -t proc proc "$folder/proc"
  mount --rbind /dev "$folder/dev"
  mount --rbind /sys "$folder/sys"
  mount --bind "$store/archives" "$folder/var/cache/apt/archives"
  mount --bind "$store/pip" "$folder/root/.cache/pip"
  if command -v ccache >/dev/null && cache="$(ccache --get-config cache_dir)" && mkdir -p "$cache"; then
    mount --bind "$cache" "$folder/root/.cache/ccache"
  fi
  # Certificates of this network, where pip is told some.
  [ ! -f "${PIP_CERT:-}" ] || cp "$PIP_CERT" "$folder/etc/pip-certificates.crt"
}

# drop_root NAME: and nothing of what is mounted in it, which can be this machine's own caches: where a mount stays, so does
# the root.
drop_root() {
  local folder="${store:?}/$1" mounted
  while read -r mounted; do umount -R "$mounted" 2>/dev/null; done < <(mounts_below "$folder")
  mounted="$(mounts_below "$folder")"
  [ -z "$mounted" ] || die "$folder is left as it is: something uses what is mounted there ($mounted)"
  rm -rf --one-file-system "$folder"
}

# mounts_below FOLDER: the innermost first.
mounts_below() { awk -v folder="$1/" 'index($5, folder) == 1 { print $5 }' /proc/self/mountinfo | sort -r; }

# in_root NAME COMMAND...: with the environment of somebody who has just logged in, and this machine's way to the network.
in_root() {
  local folder="$store/$1" environment=() line; shift
  while IFS= read -r line; do
    case "$line" in
      PIP_CERT=*) [ ! -f "$PIP_CERT" ] || environment+=(PIP_CERT=/etc/pip-certificates.crt) ;;
      PIP_INDEX_URL=* | PIP_DEFAULT_TIMEOUT=* | http_proxy=* | https_proxy=* | no_proxy=*) environment+=("$line") ;;
    esac
  done < <(env)
  env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 CCACHE_DIR=/root/.cache/ccache "${environment[@]}" \
    chroot "$folder" "$@"
}

# install_in_root NAME PACKAGE...
install_in_root() {
  local name="$1"; shift
  in_root "$name" sh -euc "apt-get update -q && apt-get install -y -q --no-install-recommends $*"
}

# copy_sources NAME: the working tree, without what git ignores, as /spillway.
copy_sources() {
  mkdir -p "$store/$1/spillway"
  git ls-files -z --cached --others --exclude-standard | tar --null --ignore-failed-read -c -T - 2>/dev/null |
    tar -x -C "$store/$1/spillway"
}

# consumers NAME PREFIX SOURCES: programs outside of the project find it as docs/embedding.md says. SOURCES: the project's.
consumers() {
  in_root "$1" sh -euc '
    export PKG_CONFIG_PATH=$(dirname "$(find '"$2"' -name spillway.pc)")
    rm -rf /tmp/consumer
    cmake -G Ninja -S '"$3"'/tests/abi/consumer -B /tmp/consumer -DCMAKE_PREFIX_PATH='"$2"'
    cmake --build /tmp/consumer
    printf "%s\n" "#include <spillway/spillway.h>" "int main(void) { return spw_version() == 0; }" >/tmp/version.c
    for package in spillway spillway-static; do
      cc /tmp/version.c $(pkg-config --cflags --libs $package) -o /tmp/version \
        -Wl,-rpath,"$(pkg-config --variable=libdir $package)"
      /tmp/version
    done'
}

# try_wheel NAME WHEEL: in a root that has nothing but Python.
try_wheel() {
  new_root "$1"
  cp "$2" "$store/$1/"
  check "python3 and venv" install_in_root "$1" python3-venv || return
  check "pip install ${2##*/}" in_root "$1" sh -euc "python3 -m venv /venv && /venv/bin/pip install /${2##*/}" || return
  cp -r examples/estimate "$store/$1/estimate"
  check "spillway --version" in_root "$1" /venv/bin/spillway --version
  check "spillway estimate" in_root "$1" /venv/bin/spillway estimate /estimate/run.toml
  check "python -m spillway, import spillway" in_root "$1" sh -euc \
    "/venv/bin/python -m spillway --version && /venv/bin/python -c 'import spillway'"
}

# dockerfile_steps NAME: what Dockerfile does, in a bare root that stands for its FROM; a folder of this checkout is its context.
dockerfile_steps() {
  local name="$1" instruction rest
  new_root "$name"
  while read -r instruction rest; do
    case "$instruction" in
      RUN) in_root "$name" sh -euc "$rest" || return ;;
      COPY) local words; read -ra words <<<"$rest"
        # Unquoted: its pattern is one of files here.
        cp ${words[0]} "$store/$name${words[1]}" || return ;;
      FROM | CMD | ENTRYPOINT | '#'* | '') ;;
      *) say "Dockerfile has an instruction that is not known here: $instruction"; return 1 ;;
    esac
  done <Dockerfile
  in_root "$name" /usr/local/bin/spillway --help
}
