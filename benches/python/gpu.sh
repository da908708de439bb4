#!/usr/bin/env bash
# The Python package on a machine with an NVIDIA GPU, PyTorch and CuPy, and without a network: its tests there, the benchmarks, and a summary at the end.
#
#   benches/python/gpu.sh pack FOLDER           here, after `./dev wheel`: what the other machine may lack
#   benches/python/gpu.sh run FOLDER [PART…]    there, in the same working tree: three to nine minutes; logs go to $OUT, if it is set
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

# The wheel, pytest, pyopencl, and the loaders of OpenCL, Vulkan and OpenGL.
pack() {
    local to=$1 name path
    local -a wheels=(target/wheels/onebuf-*.whl)
    [[ ${#wheels[@]} == 1 && -e ${wheels[0]} ]] || { echo "there is no wheel: run ./dev wheel first" >&2; return 1; }
    mkdir -p "$to" && cp "${wheels[0]}" "$to/" || return
    python3 -m pip download -q --dest "$to" --only-binary=:all: --python-version 3.12 pytest || return
    # NumPy is there already.
    python3 -m pip download -q --dest "$to" --only-binary=:all: --python-version 3.12 --no-deps pyopencl pytools platformdirs typing_extensions siphash24 || return
    for name in libOpenCL.so.1 libvulkan.so.1 libEGL.so.1 libGLdispatch.so.0 libOpenGL.so.0; do
        path=$(ldconfig -p | awk -v name="$name" '$1 == name && /x86-64/ { print $NF; exit }')
        if [[ -n $path ]]; then cp -L "$path" "$to/" || return; else echo "skip: $name: not installed" >&2; fi
    done
    du -sh "$to"
}

# Makes the drivers of a headless machine visible: it has no files that name them.
drivers() {
    local at=$1
    mkdir "$at/vendors"
    echo libnvidia-opencl.so.1 >"$at/vendors/nvidia.icd"
    echo '{"file_format_version":"1.0.0","ICD":{"library_path":"libEGL_nvidia.so.0","api_version":"1.3.0"}}' >"$at/driver.json"
    # Debian's loader reads the folder, Khronos' the list.
    export OCL_ICD_VENDORS=$at/vendors OCL_ICD_FILENAMES=libnvidia-opencl.so.1
    export VK_DRIVER_FILES=$at/driver.json VK_ICD_FILENAMES=$at/driver.json __EGL_VENDOR_LIBRARY_FILENAMES=$at/driver.json
}

run() {
    local from out wheel bad=0
    from=$(realpath -- "$1") && at=$(mktemp -d) || return
    wanted=" ${*:2} "
    trap 'rm -rf "$at"' EXIT
    out=${OUT:-$at}
    drivers "$at"
    # Loaders that the machine has itself come first.
    mkdir "$at/loaders"
    for wheel in "$from"/lib*.so.*; do
        [[ -e $wheel ]] && ! ldconfig -p | grep -q "$(basename "$wheel") " && cp "$wheel" "$at/loaders/"
    done
    export LD_LIBRARY_PATH=$at/loaders${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    # A wheel is an archive: nothing has to be installed.
    python3 -m zipfile -e "$from"/onebuf-*.whl "$at/package" && chmod +x "$at/package/onebuf/bin/onebuf" || return
    export PYTHONPATH=$at/package PYTHONUNBUFFERED=1 XDG_CACHE_HOME=$at/cache PYTHONDONTWRITEBYTECODE=1
    # Packages that the machine has itself come first.
    for wheel in "$from"/*.whl; do [[ $wheel == */onebuf-* ]] || python3 -m zipfile -e "$wheel" "$at/tools"; done
    python3 -c "import site; print('\n'.join(site.getsitepackages()))" >"$at/sites" || return
    export PYTHONPATH=$at/package:$(paste -sd: "$at/sites"):$at/tools
    part "$out/versions" 30 -c 'import onebuf as ob, numpy, torch, cupy; print(f"onebuf {ob.__version__}, NumPy {numpy.__version__}, PyTorch {torch.__version__}, CuPy {cupy.__version__}"); print(ob.discover())' || bad=1
    part "$out/tensors" 50 benches/python/tensors.py || bad=1
    part "$out/launch" 25 benches/python/launch.py || bad=1
    part "$out/tests" 300 -m pytest -q -rs --durations=8 --no-header -p no:cacheprovider crates/onebuf-python/tests/gpu || bad=1
    part "$out/example-07" 20 examples/python/07-cuda.py || bad=1
    part "$out/example-08" 20 examples/python/08-render.py "$out/render.png" || bad=1
    part "$out/example-09" 40 examples/python/09-custom-op.py || bad=1
    part "$out/allocator" 35 crates/onebuf-python/tests/gpu/bench_allocator.py 400 1 || bad=1
    echo "=== summary"
    cat "$out/versions.log" 2>/dev/null
    grep -hE '^(skip|SKIPPED|FAILED|ERROR)' "$out"/*.log
    grep -hE '^[0-9]+ (passed|failed)' "$out/tests.log" 2>/dev/null
    grep -hE '^(own|onebuf|pool) ' "$out/allocator.log" 2>/dev/null
    sed -n '/quartiles/,$p' "$out/launch.log" "$out/tensors.log" 2>/dev/null
    ! grep -q EXCEEDED "$out"/*.log || bad=1
    return "$bad"
}

# part LOG SECONDS ARGS…: Python with these arguments, whose output goes to a log and, if it fails, to the terminal; nothing if other parts are wanted.
part() {
    local log=$1.log status
    [[ $wanted == *[a-z]* && $wanted != *" $(basename "$1") "* ]] && return
    timeout --kill-after=5 "$2" python3 "${@:3}" >"$log" 2>&1
    status=$?
    echo "--- $(basename "$1"): status $status after ${SECONDS} s"
    ((status == 0)) || tail -n 60 "$log"
    return "$status"
}

case ${1:-} in
    pack) [[ $# == 2 ]] && pack "$2" ;;
    run) (($# > 1)) && run "${@:2}" ;;
    *) sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
