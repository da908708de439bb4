// OpenCL C 3.0 only: a variable of the program, in global memory.
global uint scope_count = 5;
kernel void scope_variable(global uint *out) {
    out[get_global_id(0)] = scope_count + (uint)get_global_id(0);
}
