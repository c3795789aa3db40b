# Sourced by the scripts beside it, with $self the path of the one that runs: `setup` makes the virtual environment $venv
# or brings it up to date. $venv/.gpubalance shows that the folder is ours to clear, and for which checkout and Python it
# was made; an install locks it, and it is empty until that has ended. $venv/.gpubalance,EXTRAS is the cksum of the two
# files that decide what is installed with these extras. While all is as wanted, no Python is started.
#
# GPUBALANCE_PYTHON  the Python to use (otherwise python3, then python3.13 to python3.10)
# GPUBALANCE_VENV    the folder of the virtual environment
# $versions  which versions are installed: those of constraints.txt; `next`: the newest, TensorFlow with pre-releases and
#            Keras' nightly; `oldest`: the lowest minor versions that pyproject.toml allows, each with its last fixes
# GPUBALANCE_EXTRAS  what to install beside the package; "" for nothing (otherwise cuda where there is an NVIDIA driver)
# shellcheck shell=sh

set -u
versions=${versions-}
root=${self%/scripts/*}
user_cache=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}

say() { printf 'gpubalance: %s\n' "$*" >&2; } # stdout belongs to the program
die() { say "$*" && exit 3; }

# setup [dev]: leaves $venv ready, or ends the script with 3.
setup() {
    extras=
    if [ -e /proc/driver/nvidia/version ] || command -v nvidia-smi >/dev/null 2>&1; then extras=cuda; fi
    extras=${GPUBALANCE_EXTRAS-$extras}
    extras=${extras:+,$extras}${1:+,$1}
    files=$(cksum "$root/pyproject.toml" "$root/scripts/constraints.txt") || die "$root is not a whole checkout"
    venv=${GPUBALANCE_VENV:-$root/.venv${versions:+.$versions}}
    case $venv in /*) ;; *) venv=$PWD/$venv ;; esac
    ready && return
    if [ -z "${GPUBALANCE_VENV-}" ] && ! { mkdir -p "$venv" && [ -w "$venv" ]; } 2>/dev/null; then
        hash=$(printf '%s' "$root" | cksum)
        venv=$user_cache/gpubalance/venv-${hash%% *}
    fi
    ready || (install) || exit 3 # a subshell: its lock and its environment end with it
}

ready() { usable && [ "$(cat "$venv/.gpubalance$extras," 2>/dev/null)" = "$files" ]; }

# Whether pip can go on with $venv: one that is whole, of this checkout (it does not survive a move) and of this Python.
usable() {
    made='' had_python=''
    [ ! -r "$venv/.gpubalance" ] || { IFS= read -r made && IFS= read -r had_python; } <"$venv/.gpubalance"
    [ "$made" = "$root" ] && [ "${GPUBALANCE_PYTHON:-$had_python}" = "$had_python" ] && [ -x "$venv/bin/python" ]
}

install() {
    [ -e "$venv/.gpubalance" ] || [ -z "$(ls -A "$venv" 2>/dev/null)" ] ||
        die "$venv is in the way, as gpubalance did not make it: move it, or name another folder in GPUBALANCE_VENV"
    { mkdir -p "$venv" && touch "$venv/.gpubalance"; } || die "cannot write to $venv: name another in GPUBALANCE_VENV"
    exec 9>>"$venv/.gpubalance" # pip inherits this: an orphaned one keeps the lock
    flock -n 9 || { say "waits for the install that is under way in $venv" && flock 9; }
    ready && return

    unset PYTHONHOME PYTHONPATH PIP_TARGET PIP_PREFIX PIP_ROOT
    # By the environment, as these reach the build of the package too; relative, as pip splits them at spaces.
    export PIP_USER=0 PIP_CONSTRAINT=scripts/constraints.txt PIP_BUILD_CONSTRAINT=scripts/constraints.txt
    cd "$root" || exit 3
    case $versions in
    next) unset PIP_CONSTRAINT PIP_BUILD_CONSTRAINT ;;
    oldest)
        PIP_CONSTRAINT=build/oldest.txt && mkdir -p build
        grep -o '"[a-z0-9-]\+>=[0-9.]*' pyproject.toml | sed 's/"\(.*\)>=\(.*\)/\1==\2.*/' >"$PIP_CONSTRAINT"
        ;;
    esac
    usable || { had_python=${GPUBALANCE_PYTHON-} && make_venv; }
    : >"$venv/.gpubalance"
    case $extras, in
    *,cuda,*) say "installing TensorFlow with CUDA (3 GB) and the rest, some minutes, in $venv" ;;
    *) say "installing TensorFlow and the rest, about a minute, in $venv" ;;
    esac
    set -- --progress-bar off --no-input --disable-pip-version-check --log "$venv/install.log"
    set -- "$venv/bin/python" -m pip install "$@" -e ".${extras:+[${extras#,}]}"
    failed=$({ { "$@" </dev/null || echo failed >&3; } | sed -nu "$downloads" >&2; } 3>&1)
    [ "$versions" != next ] || install_next || failed=echo
    printf '%s\n' "$root" "$had_python" >"$venv/.gpubalance" # a pip that failed has undone what it began
    [ -z "$failed" ] || die "the install failed: $venv/install.log has all that pip said"
    printf '%s' "$files" | tee "$venv/.gpubalance$extras," >"$venv/.gpubalance${extras%,dev}," # who has dev has the rest
}

# TensorFlow's newest pre-release, and Keras' nightly in the place of its release: both have the folder keras/.
install_next() {
    set -- "$venv/bin/python" -m pip install --quiet --no-input --pre --log "$venv/install.log"
    "$@" --upgrade tensorflow && "$venv/bin/python" -m pip uninstall --quiet --yes keras keras-nightly &&
        "$@" --no-deps keras-nightly
}

# The downloads of 10 MB or more among pip's lines, which are too many.
downloads='s|.*Downloading \(.*/\)*\([^-]*\)-.* (\([0-9][0-9][0-9.]* MB\)).*|gpubalance: downloading \2 (\3)|p
s|^Installing collected packages: .*|gpubalance: unpacking the packages, the last step|p'

# Makes $venv, from scratch where an install was cut off.
make_venv() {
    set -- python3 python3.13 python3.12 python3.11 python3.10
    [ "$versions" != oldest ] || set -- python3.10 python3.11 python3.12 python3.13 python3
    [ -z "${GPUBALANCE_PYTHON-}" ] || set -- "$GPUBALANCE_PYTHON"
    for python; do
        # The path of the file, not of a link such as /usr/bin/python3, which an upgrade of the system turns elsewhere.
        python=$("$python" -I -c 'import ensurepip, os, sys, venv
assert (3, 10) <= sys.version_info < (3, 14)
print(os.path.realpath(sys._base_executable))' 2>/dev/null) && break
    done || die "no Python 3.10 to 3.13 with its venv module (Debian, Ubuntu: apt install python3-venv) among: $*;" \
        "GPUBALANCE_PYTHON names another"
    say "making a Python environment, some seconds"
    : >"$venv/.gpubalance"
    find "$venv/" -mindepth 1 -maxdepth 1 ! -name .gpubalance -exec rm -rf {} + && "$python" -m venv "$venv" >&2 ||
        die "cannot make a virtual environment in $venv"
}
