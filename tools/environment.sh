# Sourced by tools/demo and tools/test (bash): makes .venv in the checkout and installs into it what they need.
#
#   prepare_environment [test] [demo] [spark] [bench]   the package itself, editable, and what those extras are
#   prepare_java                                        Java for Spark, where it is missing and may be installed
#
# Nothing is installed, and no network is needed, when pyproject.toml is as it was the last time. $PYTHON names
# another interpreter than python3. Afterwards $root is the checkout and $python the environment's interpreter.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
python=$root/.venv/bin/python

say() { printf '%s\n' "$*" >&2; }

fail() {
    say "$*"
    exit 1
}

# What an environment depends on: were it another Python or another directory, its scripts would not run.
describe_python() {
    "$1" -c 'import sys; print(sys.version, sys.base_prefix, sep="\n")' 2>/dev/null && printf '%s\n' "$root"
}

# Install Debian packages if that is possible without asking anybody; false if not.
install_packages() {
    command -v apt-get >/dev/null || return 1
    local as_root=(env DEBIAN_FRONTEND=noninteractive) output
    if [ "$(id -u)" -ne 0 ]; then
        sudo -n true 2>/dev/null || return 1
        as_root=(sudo -n "${as_root[@]}")
    fi
    say "Installing $* with apt-get ..."
    # A fresh machine or container may never have fetched the package lists.
    output=$("${as_root[@]}" apt-get install -y "$@" 2>&1 </dev/null) && return
    output=$("${as_root[@]}" apt-get update 2>&1 </dev/null &&
        "${as_root[@]}" apt-get install -y "$@" 2>&1 </dev/null) && return
    say "$output"
    return 1
}

# Spark runs on Java 17 or later. False where there is none and none can be installed; then it says what is missing.
prepare_java() {
    has_java && return
    # Debian 12 has the first, later ones and Ubuntu the second.
    install_packages openjdk-17-jre-headless && has_java && return
    install_packages default-jre-headless && has_java && return
    say "Spark needs Java 17 or later: install openjdk-17-jre-headless, or set JAVA_HOME."
    return 1
}

has_java() {
    local java=${JAVA_HOME:+$JAVA_HOME/bin/}java version
    version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    [ "${version:-0}" -ge 17 ]
}

make_venv() {
    local base=${PYTHON:-python3} options=()
    command -v "$base" >/dev/null ||
        fail "No $base on this machine: install Python 3.11 or later (Debian: apt-get install python3-venv)."
    "$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "omq needs Python 3.11 or later, and $base is $("$base" --version 2>&1): set PYTHON to a later one."
    if ! "$base" -c 'import ensurepip, venv' 2>/dev/null; then
        # Debian keeps these two modules in a package of their own.
        install_packages python3-venv && "$base" -c 'import ensurepip, venv' 2>/dev/null ||
            fail "$base cannot make virtual environments: install python3-venv (apt-get install python3-venv)."
    fi
    say "Making the environment .venv ($("$base" --version 2>&1)) ..."
    # Only an environment that was made here is emptied; another one is kept and added to.
    [ -e "$root/.venv/made-of" ] && options=(--clear)
    "$base" -m venv "${options[@]}" "$root/.venv" || fail "The environment could not be made."
    describe_python "$python" >"$root/.venv/made-of"
}

install() {
    "$python" -m pip install --quiet --quiet --disable-pip-version-check --no-input "$@" ||
        fail "The installation failed, for the reason above. It needs the network."
}

# What an extra of pyproject.toml requires, or with "omq" the package itself.
list_requirements() {
    "$python" -c 'import sys, tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extras = {**project["optional-dependencies"], "omq": project["dependencies"]}
print(*extras[sys.argv[1]], sep="\n")' "$1"
}

# Whether an extra ("" for the package alone) is installed as pyproject.toml has it now, and noting that it is.
# So do the sources of the compiled codec: where there is a C compiler, installing builds it again.
fingerprint() {
    local file
    for file in "$root"/pyproject.toml "$root"/setup.py "$root"/storage/omq_storage/_codec.pyx "$root"/storage/omq_storage/native/*; do
        cat "$file" 2>/dev/null || true
    done | sha256sum
}
is_installed() { [ "$(cat "$root/.venv/installed-$1" 2>/dev/null)" = "$(fingerprint)" ]; }
note_installed() { fingerprint >"$root/.venv/installed-$1"; }

prepare_environment() {
    local was expected extra names=() together=() parts=() part
    # Two runs at once must not install at once.
    exec 9<"$root/pyproject.toml"
    flock 9
    was=$(cat "$root/.venv/made-of" 2>/dev/null) || true
    expected=$(describe_python "${PYTHON:-$python}") || true
    [ -n "$was" ] && [ "$was" = "$expected" ] && [ -x "$python" ] || make_venv
    cd "$root" || exit
    for extra in "$@" omq; do
        is_installed "$extra" && continue
        say "Installing $extra into .venv ..."
        case $extra in
        omq)
            # Compiling the codec takes as long as getting all that the package requires, which is installed below.
            install --no-deps -e . &
            parts+=($!)
            together+=(omq)
            ;;
        demo)
            # The package of flights declares pandas, which its Python code reads the data with. The demo opens
            # the file itself, so it does without that code, and without 100 MB of packages for it.
            mapfile -t names < <(list_requirements demo)
            install --no-deps --use-pep517 "${names[@]}"
            note_installed demo
            ;;
        spark)
            say "Spark is large: about 660 MB."
            mapfile -t names < <(list_requirements spark)
            # Unpacking it takes as long as many of the others, and they have no package in common with it.
            (install "${names[@]}" && note_installed spark) &
            parts+=($!)
            ;;
        *) together+=("$extra") ;;
        esac
    done
    if [ ${#together[@]} -gt 0 ]; then
        # One run of pip, because each takes seconds to find out what is already there.
        mapfile -t names < <(for extra in "${together[@]}"; do list_requirements "$extra"; done)
        install "${names[@]}"
    fi
    for part in "${parts[@]}"; do
        wait "$part" || exit
    done
    for extra in "${together[@]}"; do note_installed "$extra"; done
    cd - >/dev/null || exit
    exec 9<&-
}
