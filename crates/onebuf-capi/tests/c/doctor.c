// A program that is its own helper: `doctor FOLDER` stores its verdicts there.

#include "check.h"
#include <string.h>

int main(int argc, char **argv) {
    OK(onebuf_doctor_helper_main()); // must come first: a helper process does not return from it
    if (argc != 2) fail("usage: doctor FOLDER", __LINE__);
    onebuf_hub hub;
    onebuf_hub_options looks = ONEBUF_OPTIONS(onebuf_hub_options);
    looks.cache_folder = argv[1];
    OK(onebuf_hub_discover(&looks, &hub));
    size_t devices;
    OK(onebuf_hub_device_count(hub, &devices));

    onebuf_doctor_options options = ONEBUF_OPTIONS(onebuf_doctor_options);
    onebuf_string json;
    ENDS(ONEBUF_NULL_POINTER, onebuf_doctor_run(hub, &options, &json));
    options.helper = "/proc/self/exe";
    options.cache_folder = argv[1];
    options.silence_ms = 60000;
    options.reach_bytes = 1 << 20;
    OK(onebuf_doctor_run(hub, &options, &json));
    const char *text = onebuf_string_data(json);
    TRUE(strstr(text, "\"schema\":2") != NULL);
    TRUE(devices == 1 || strstr(text, "\"state\":\"proven\"") != NULL);
    puts(text);
    OK(onebuf_string_free(json));

    // Stored verdicts are used: the second run makes no experiment.
    OK(onebuf_doctor_run(hub, &options, &json));
    TRUE(strstr(onebuf_string_data(json), "\"experiments\":0") != NULL);
    OK(onebuf_string_free(json));
    OK(onebuf_hub_free(hub));
    return 0;
}
