kernel void refused_printf(global uint *x) {
    x[get_global_id(0)] += 1;
    printf("item %d: %f\n", (int)get_global_id(0), 1.5f);
}
