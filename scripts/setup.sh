# Sourced by the scripts beside it, with $self the path of the one that runs: `setup` makes the virtual environment
# $venv in the checkout, or keeps it up to date. $venv/.gpubalance says how far it is. Its five lines: "making",
# "installing" or "ready" (written last); the Python asked for; the extras; and the cksum of the two files that decide
# what is installed, with their paths, as a virtual environment does not survive a move. Where these are as wanted,
# setup costs one cksum: no Python is started. stdout belongs to the program, so all that is said here goes to stderr.
#
# GPUBALANCE_PYTHON  the Python to use (otherwise python3, then python3.13 to python3.10)
# GPUBALANCE_VENV    the folder of the virtual environment
# GPUBALANCE_EXTRAS  what to install beside the package; "" for nothing (otherwise cuda where there is an NVIDIA driver)
# shellcheck shell=sh

set -u
root=${self%/scripts/*}
user_cache=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}

say() { printf 'gpubalance: %s\n' "$*" >&2; }

die() {
    say "$*"
    exit 3
}

# setup [dev]: leaves $venv ready, or ends the script with 3.
setup() {
    if [ -n "${GPUBALANCE_EXTRAS+set}" ]; then
        extras=$GPUBALANCE_EXTRAS
    elif [ -e /proc/driver/nvidia/version ] || command -v nvidia-smi >/dev/null 2>&1; then
        extras=cuda
    else
        extras=
    fi
    extras=$extras${1:+${extras:+,}$1}
    files=$(cksum "$root/pyproject.toml" "$root/scripts/constraints.txt") || die "$root is not a whole checkout"
    place
    fresh || (install) || exit 3 # a subshell: its lock and its environment end with it
}

# Sets $venv. An up-to-date one in the checkout serves those too who cannot write there.
place() {
    case ${GPUBALANCE_VENV-} in
        '') venv=$root/.venv ;;
        /*) venv=$GPUBALANCE_VENV && return ;;
        *) venv=$PWD/$GPUBALANCE_VENV && return ;;
    esac
    if fresh || { [ -w "$root" ] && { [ ! -e "$venv" ] || [ -w "$venv" ]; }; }; then return; fi
    [ -n "$user_cache" ] || die "$root cannot be written to, and there is no HOME: name a folder in GPUBALANCE_VENV"
    hash=$(printf '%s' "$root" | cksum)
    venv=$user_cache/gpubalance/venv-${hash%% *}
}

read_state() {
    state='' had_python='' had_extras='' pyproject='' constraints=''
    [ ! -r "$venv/.gpubalance" ] || {
        read -r state
        IFS= read -r had_python
        read -r had_extras
        IFS= read -r pyproject
        IFS= read -r constraints
    } <"$venv/.gpubalance"
}

write_state() {
    printf '%s\n' "$1" "${GPUBALANCE_PYTHON-}" "$extras" "$files" >"$venv/.gpubalance" || die "cannot write to $venv"
}

# Whether $venv has what is wanted. More than that, such as dev for scripts/gpubalance, is welcome.
fresh() {
    read_state
    [ "$state" = ready ] && [ -x "$venv/bin/python" ] && [ "$pyproject
$constraints" = "$files" ] && [ "${GPUBALANCE_PYTHON:-$had_python}" = "$had_python" ] || return 1
    [ -z "$extras" ] || [ "$extras" = "$had_extras" ] || [ -z "$(lacking "$extras" "$had_extras")" ]
}

# lacking A B: the extras of list A that are not in list B, each with a comma before it.
lacking() {
    IFS=,
    for extra in $1; do
        case ,$2, in *,"$extra",*) ;; *) printf ',%s' "$extra" ;; esac
    done
}

probe='
import os, sys
if not (3, 10) <= sys.version_info[:2] <= (3, 13):
    print("is %d.%d" % sys.version_info[:2])
    sys.exit(1)
try:
    import ensurepip, venv
except ImportError:
    print("has no venv module (Debian, Ubuntu: apt install python%d.%d-venv)" % sys.version_info[:2])
    sys.exit(1)
# The very file, and not a link as /usr/bin/python3: gone after an upgrade to another Python, which is then noticed.
print(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
'

# Prints the path of the Python to use. An interrupted or old $venv tells which was used before.
find_python() {
    if [ -n "${GPUBALANCE_PYTHON-}" ]; then
        set -- "$GPUBALANCE_PYTHON"
    else
        set -- "$venv/bin/python" python3 python3.13 python3.12 python3.11 python3.10
    fi
    seen=
    for candidate; do
        found=$("$candidate" -I -c "$probe" 2>/dev/null) && printf '%s\n' "$found" && return
        [ -z "$found" ] || seen="$seen; $candidate $found"
    done
    die "needs Python 3.10 to 3.13 with its venv module (other: GPUBALANCE_PYTHON=/path/to/python)${seen:-; found none}"
}

# flock, as a dead process does not hold it but an orphaned pip does: it has inherited descriptor 9.
lock='
import fcntl, sys
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("gpubalance: waits for the install that is under way in", sys.argv[1], file=sys.stderr, flush=True)
    fcntl.flock(9, fcntl.LOCK_EX)
except OSError:
    pass # a file system without locks
'

install() {
    unset PYTHONHOME PYTHONPATH PIP_TARGET PIP_PREFIX PIP_ROOT
    export PIP_USER=0
    mkdir -p "$venv" && touch "$venv/.gpubalance.system.lock" || die "cannot write to $venv"
    exec 9>>"$venv/.gpubalance.system.lock"
    python=$(find_python) || exit 3
    "$python" -I -c "$lock" "$venv" || exit 3
    fresh && exit
    cd "$root" || exit 3

    if keepable; then
        extras=$extras$(lacking "$had_extras" "$extras")
        extras=${extras#,}
        announce "bringing TensorFlow and the rest up to date" "up to a minute"
    else
        had_extras=
        announce "${why:-first use}: installing TensorFlow and the rest" "about a minute"
        write_state making # first, so that what an interrupted clearing leaves is still known as ours
        (cd "$venv" && find . ! -name . -prune ! -name .gpubalance ! -name .gpubalance.system.lock -exec rm -rf {} +)
    fi
    if [ ! -x "$venv/bin/pip" ]; then
        run "$python" -m venv "$venv"
    fi
    write_state installing
    # By the environment, as this reaches the build of the package too; relative, as pip splits it at spaces.
    export PIP_CONSTRAINT=scripts/constraints.txt PIP_BUILD_CONSTRAINT=scripts/constraints.txt
    run "$venv/bin/python" -u -m pip install --no-input --disable-pip-version-check --progress-bar off \
        -e ".${extras:+[$extras]}"
    write_state ready
}

# announce WHAT TIME
announce() {
    case $(lacking "$extras" "$had_extras"), in
        *,cuda,*) say "$1, with CUDA (3 GB), some minutes" ;;
        *) say "$1, $2" ;;
    esac
    printf '  in %s\n' "$venv" >&2  # on a line of its own, as a terminal breaks a long one within a word
}

# Whether pip can go on with what is in $venv; $why if not. It can with a whole one, and with one where pip was cut off
# before it wrote: a failed download must not cost a working install.
keepable() {
    why=
    if [ ! -e "$venv/.gpubalance" ]; then
        [ "$(ls -A "$venv")" != .gpubalance.system.lock ] || return 1
        # Not made here, and maybe with more in it: to use or to leave alone, not to clear.
        grep -qsF "$venv" "$venv/bin/activate" && same_python && return
        die "$venv is in the way, and not a virtual environment for this Python: move it, or set GPUBALANCE_VENV"
    fi
    read_state
    case $pyproject in *" $root/pyproject.toml") ;; *) why="$venv belongs to another folder" && return 1 ;; esac
    if [ "$state" != ready ] && { [ "$state" != installing ] || ! [ -e "$venv/install.log" ] ||
        grep -q '^Installing collected packages' "$venv/install.log"; }; then
        why="the last install was cut off"
        return 1
    fi
    same_python || { why="another Python than before" && return 1; }
}

same_python() { [ "$("$venv/bin/python" -I -c "$probe" 2>/dev/null)" = "$python" ]; }

# Runs a command, its output into the log; on failure shows the end of that.
run() {
    "$@" >"$venv/install.log" 2>&1 </dev/null && return
    tail -n 15 "$venv/install.log" >&2
    die "the install failed; all of its output is in $venv/install.log"
}

# Lets the development tools write beside $venv and not into the checkout, which can be read-only.
tool_caches() {
    cache=$venv/.cache
    [ -w "$venv" ] || cache=${user_cache:-/tmp}/gpubalance/tools
    export RUFF_CACHE_DIR="$cache/ruff" MYPY_CACHE_DIR="$cache/mypy" HYPOTHESIS_STORAGE_DIRECTORY="$cache/hypothesis"
    pytest_cache=$cache/pytest
}
