// A program that is its own helper: `doctor FOLDER` stores its verdicts there.

#include "check.h"
#include <string.h>

static size_t told;

static void progress(void *user, const char *route, size_t done, size_t total) {
    TRUE(user == &told && strstr(route, " -> ") && done < total);
    told++;
}

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
    // Between the host and itself there is nothing to test.
    onebuf_device host;
    OK(onebuf_hub_device(hub, "host", &host));
    options.devices = &host, options.device_count = 1, options.grafts = 1;
    options.progress = progress, options.progress_user = &told;
    OK(onebuf_doctor_run(hub, &options, &json));
    TRUE(strstr(onebuf_string_data(json), "\"experiments\":0") && strstr(onebuf_string_data(json), "\"grafts\":[]") && told == 0);
    OK(onebuf_string_free(json));
    options.devices = NULL, options.device_count = 0;
    OK(onebuf_doctor_run(hub, &options, &json));
    TRUE(devices == 1 || told > 0);
    onebuf_cache_info cache = ONEBUF_OPTIONS(onebuf_cache_info);
    OK(onebuf_cache_query(argv[1], &cache));
    TRUE(devices == 1 || (cache.verdicts > 0 && cache.bytes > 0));
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

    // A new hub knows them, until they are removed.
    OK(onebuf_hub_discover(&looks, &hub));
    onebuf_hub_info info = ONEBUF_OPTIONS(onebuf_hub_info);
    OK(onebuf_hub_query(hub, &info));
    TRUE(info.verdict_count == cache.verdicts);
    OK(onebuf_hub_free(hub));
    looks.cache_folder = NULL, looks.verdict_folder = argv[1];
    OK(onebuf_hub_discover(&looks, &hub));
    OK(onebuf_hub_query(hub, &info));
    TRUE(info.verdict_count == cache.verdicts);
    OK(onebuf_hub_free(hub));
    OK(onebuf_cache_clear(argv[1], &cache));
    TRUE(cache.verdicts == info.verdict_count);
    OK(onebuf_cache_query(argv[1], &cache));
    TRUE(cache.verdicts == 0);
    return 0;
}
