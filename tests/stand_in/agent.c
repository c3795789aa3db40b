/* What runs on a host, for `scripts/bench hosts`: speaks an agent's and its workers' lines, and trains nothing.

   agent HELLO TIMINGS …: HELLO is what it says first; to each request to measure it gives so many timings.
   Requests may be megabytes, of which only the beginning matters here: nothing is kept. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define HEAD 120
#define BEATS_EVERY_MS 5000

static const char *ready =
    "{\"kind\":\"ready\",\"model\":{\"name\":\"small\",\"parameters\":648,\"gradient_bytes\":2592},"
    "\"tensorflow\":\"0\",\"keras\":\"0\",\"cuda\":null,\"cudnn\":null,\"memory_limit_bytes\":[null]}\n";
static const char *timing =
    "{\"kind\":\"timing\",\"steps\":1,\"seconds\":0.1,\"ended_s\":1.0,\"input_wait_s\":0.0,\"compute_s\":[0.08],"
    "\"update_s\":[0.001],\"step_s\":0.1}\n";
static const char *measured = "{\"kind\":\"measured\",\"memory_peak_bytes\":[null],\"late_part\":null}\n";

static void say(const char *line) {
    size_t left = strlen(line);
    while (left) {
        ssize_t done = write(1, line, left);
        if (done < 0) exit(0); /* nobody hears */
        line += done;
        left -= (size_t)done;
    }
}

static void reply(int number, const char *line) {
    char piece[1024];
    snprintf(piece, sizeof piece, "@%d 1 %zu\n%s", number, strlen(line), line);
    say(piece);
}

static int after(const char *head, const char *key) {
    const char *found = strstr(head, key);
    return found ? atoi(found + strlen(key)) : 0;
}

static void listens(int number, int count) {
    char line[80];
    int pid = (int)getpid();
    snprintf(line, sizeof line, "@{\"kind\":\"listens\",\"number\":%d,\"folder\":\"\",\"addresses\":[", number);
    say(line);
    for (int i = 0; i < count; i++) {
        snprintf(line, sizeof line, "%s\"10.%d.%d.%d:%d\"", i ? "," : "", pid >> 16, pid >> 8 & 255, pid & 255, i + 1);
        say(line);
    }
    say("]}\n");
}

static void answer(const char *head, int timings) {
    char line[80];
    if (strncmp(head, "@{\"kind\":\"listen\"", 17) == 0) {
        listens(after(head, "\"number\":"), after(head, "\"count\":"));
    } else if (strncmp(head, "@{\"kind\":\"end\"", 14) == 0) {
        snprintf(line, sizeof line, "@{\"kind\":\"ended\",\"number\":%d,\"code\":0}\n", after(head, "\"number\":"));
        say(line);
    } else if (strstr(head, " {\"kind\":\"open\"")) {
        reply(atoi(head), ready);
    } else if (strstr(head, " {\"kind\":\"measure\"")) {
        for (int i = 0; i < timings; i++) reply(atoi(head), timing);
        reply(atoi(head), measured);
    }
}

int main(int count, char **words) {
    static char chunk[1 << 16];
    char head[HEAD + 1] = "";
    size_t length = 0;
    struct pollfd in = {.fd = 0, .events = POLLIN};
    if (count < 3) return 2;
    say(words[1]);
    say("\n");
    time_t beaten = time(NULL);
    for (;;) {
        int is_told = poll(&in, 1, BEATS_EVERY_MS);
        if (time(NULL) >= beaten + BEATS_EVERY_MS / 1000) {
            say("@\n");
            beaten = time(NULL);
        }
        if (!is_told) continue;
        ssize_t got = read(0, chunk, sizeof chunk);
        if (got <= 0) return 0;
        for (ssize_t i = 0; i < got; i++) {
            if (chunk[i] == '\n') {
                head[length] = 0;
                answer(head, atoi(words[2]));
                length = 0;
            } else if (length < HEAD) {
                head[length++] = chunk[i];
            } else {
                char *end = memchr(chunk + i, '\n', (size_t)(got - i));
                i = (end ? end - chunk : got) - 1;
            }
        }
    }
}
