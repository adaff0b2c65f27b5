# shellcheck shell=bash
# Sourced by the scripts: finds a Python and keeps virtual environments current.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="${AGENTKERNEL_VENV:-$root/.venv}"
cd "$root"

# The extras of the project that the tests need, comma separated.
test_extras="local"

export PIP_DISABLE_PIP_VERSION_CHECK=1
export PYRIGHT_PYTHON_IGNORE_WARNINGS=1

# Progress goes to standard error, so that the output of a tool stays its own.
say() { printf '==> %s\n' "$*" >&2; }

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Prints the first Python that is new enough and can make a virtual environment.
# PYTHON=/path/to/python names one by hand.
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
        if "$candidate" -c '
import ensurepip, sys, venv
sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
' >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
    die "the one system prerequisite is missing: Python 3.11, 3.12 or 3.13 with" \
        "venv support (on Debian: apt-get install python3 python3-venv)"
}

# Until the surrounding subshell ends, no other script changes the environment.
lock() {
    if command -v flock >/dev/null; then
        exec 9>"$1.lock"
        flock 9
    fi
}

# make_env DIR LABEL CONSTRAINTS PIP-ARGUMENTS...
# Installs what the arguments name into the environment DIR. Does nothing if the same
# call has succeeded before and no file that it depends on has changed. Failures are
# checked one by one: a caller that tests the result switches `set -e` off in here.
make_env() {
    local dir="$1" label="$2" constraints="$3"
    shift 3
    local stamp="$dir/.agentkernel-$label" python wanted
    wanted="$(cat pyproject.toml "$constraints" <(printf '%s\n' "$root" "$@") | cksum)"
    (
        lock "$dir"
        if [[ -f $stamp && "$(cat "$stamp")" == "$wanted" ]] &&
            "$dir/bin/python" -c '' 2>/dev/null; then
            exit 0
        fi
        if ! "$dir/bin/python" -m pip --version >/dev/null 2>&1; then
            python="$(find_python)" || exit
            say "creating ${dir##*/} with $("$python" --version)"
            rm -rf "$dir"
            "$python" -m venv "$dir" || exit
        fi
        say "installing into ${dir##*/}: $label (the first time takes a minute)"
        "$dir/bin/python" -m pip install -qq --constraint "$constraints" \
            --upgrade pip || exit
        "$dir/bin/python" -m pip install -qq --constraint "$constraints" \
            --build-constraint requirements/constraints.txt "$@" || exit
        printf '%s\n' "$wanted" >"$stamp"
    )
}

test_env() {
    make_env "$venv" test requirements/constraints.txt \
        --group test --editable ".${test_extras:+[$test_extras]}"
}

check_env() {
    make_env "$venv" check requirements/constraints.txt \
        --group test --group check --editable ".${test_extras:+[$test_extras]}"
}

# wheel_env DIR LABEL CONSTRAINTS PIP-ARGUMENTS...
# An environment that holds the project as its users get it: from the wheel, which
# is built afresh, never from the checkout.
wheel_env() {
    local dir="$1" label="$2" constraints="$3"
    shift 3
    make_env "$dir" "$label" "$constraints" "$@" || return
    (
        lock "$dir"
        rm -rf "$root/.build/$label"
        output="$("$venv/bin/python" -m hatchling build -t wheel \
            -d "$root/.build/$label" 2>&1)" || die "$output"
        "$dir/bin/python" -m pip install -qq --no-deps --force-reinstall \
            "$root/.build/$label/"*.whl
    )
}
