/* What a hostile dependency could try while tests run. Each attempt is
 * harmless: nothing is sent and nothing is changed. The exit code is the
 * number of attempts that succeeded. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int read_secret_beside_the_project(void)
{
    return open("../planted-secret.txt", O_RDONLY) >= 0;
}

/* Opened for writing and not written to. */
static int change_a_file_beside_the_project(void)
{
    return open("../planted-secret.txt", O_WRONLY) >= 0;
}

/* Connecting a UDP socket sends nothing; it succeeds if there is a route. */
static int find_a_way_to_the_internet(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(53) };
    int any = socket(AF_INET, SOCK_DGRAM, 0);
    inet_pton(AF_INET, "192.0.2.1", &address.sin_addr);
    return connect(any, (struct sockaddr *)&address, sizeof address) == 0;
}

static int parent_of(int process)
{
    char path[64];
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    FILE *file = fopen(path, "r");
    if (file) {
        if (fscanf(file, "%*d (%*[^)]) %*c %d", &parent) != 1)
            parent = 0;
        fclose(file);
    }
    return parent;
}

static int is_own(int process)
{
    for (int mine = getpid(); mine > 0; mine = parent_of(mine))
        if (mine == process)
            return 1;
    return 0;
}

static int see_a_process_of_somebody_else(void)
{
    DIR *processes = opendir("/proc");
    struct dirent *entry;
    while (processes && (entry = readdir(processes))) {
        int process = atoi(entry->d_name);
        if (process > 0 && !is_own(process))
            return 1;
    }
    errno = ESRCH;
    return 0;
}

static int become_root_in_a_namespace(void)
{
    return unshare(CLONE_NEWUSER) == 0;
}

static const struct {
    const char *name;
    int (*succeeds)(void);
} attempts[] = {
    { "read a secret beside the project", read_secret_beside_the_project },
    { "change a file beside the project", change_a_file_beside_the_project },
    { "find a way to the internet", find_a_way_to_the_internet },
    { "see a process of somebody else", see_a_process_of_somebody_else },
    { "become root in a namespace", become_root_in_a_namespace },
};

int main(void)
{
    int succeeded = 0;
    for (size_t i = 0; i < sizeof attempts / sizeof *attempts; i++) {
        errno = 0;
        if (attempts[i].succeeds()) {
            succeeded++;
            printf("  %-34s SUCCEEDED\n", attempts[i].name);
        } else {
            printf("  %-34s stopped: %s\n", attempts[i].name, strerror(errno));
        }
    }
    return succeeded;
}
