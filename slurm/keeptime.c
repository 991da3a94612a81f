/*
 * A plugin of Slurm's (SPANK): srun --keeptime=r17 has the tasks of a step run in the reservation r17, on every node as
 * what is reserved there says. Slurm starts them, counts and ends them as ever.
 *
 * In plugstack.conf: required keeptime.so [keeptime=PROGRAM] [socket=PATH]. The program is /usr/bin/keeptime if nothing
 * is said, and it asks the agent where it would by itself. Each task has itself bound (`keeptime bind`) as its own user
 * before it becomes the program: what it starts later is in the reservation with it. A task that cannot be is not run
 * (where plugstack.conf says `optional`, Slurm runs it all the same). For srun alone: sbatch and salloc know no such option.
 */
#include <errno.h>
#include <signal.h>
#include <slurm/spank.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

SPANK_PLUGIN(keeptime, 1)

/* A handle is r and a number of 64 bits. */
#define HANDLE_LENGTH_MAX 21

static char handle[HANDLE_LENGTH_MAX + 1];

static int is_handle(const char *text)
{
    size_t length = strlen(text);
    if (length < 2 || length > HANDLE_LENGTH_MAX || text[0] != 'r')
        return 0;
    return strspn(text + 1, "0123456789") == length - 1;
}

/* Called where the option is read, and on every node. */
static int set_handle(int value, const char *text, int remote)
{
    (void)value;
    if (!text || !is_handle(text)) {
        if (!remote)
            slurm_error("--keeptime: \"%s\" is not accepted; expected a reservation's handle, as in r17", text ? text : "");
        return ESPANK_BAD_ARG;
    }
    strcpy(handle, text);
    return ESPANK_SUCCESS;
}

int slurm_spank_init(spank_t spank, int count, char **arguments)
{
    (void)count;
    (void)arguments;
    /* sbatch would bind its script, and tell no step of it; salloc would tell all of them, those of others too. */
    if (spank_context() == S_CTX_ALLOCATOR)
        return ESPANK_SUCCESS;
    struct spank_option option = {
        .name = (char *)"keeptime",
        .arginfo = (char *)"HANDLE",
        .usage = (char *)"run in this reservation of Keeptime's, as in r17 (keeptime reserve)",
        .has_arg = 1,
        .val = 0,
        .cb = set_handle,
    };
    return spank_option_register(spank, &option);
}

/* What of the arguments in plugstack.conf begins with `name=`. */
static const char *said(int count, char **arguments, const char *name)
{
    size_t length = strlen(name);
    for (int i = 0; i < count; i++)
        if (!strncmp(arguments[i], name, length) && arguments[i][length] == '=')
            return arguments[i] + length + 1;
    return NULL;
}

/* The exit code of a program that is waited for; -1 if it has none. */
static int run(const char *program, char *const words[], char *const environment[])
{
    /* Whoever ignores the ends of children is not told them. */
    struct sigaction usual = {.sa_handler = SIG_DFL}, before;
    sigaction(SIGCHLD, &usual, &before);
    pid_t child;
    int status = -1;
    int error = posix_spawn(&child, program, NULL, NULL, words, environment);
    if (error) {
        slurm_error("keeptime: cannot start %s: %s", program, strerror(error));
    } else {
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            ;
        status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    sigaction(SIGCHLD, &before, NULL);
    return status;
}

/* In the task's own process, as its user, with its output. */
int slurm_spank_task_init(spank_t spank, int count, char **arguments)
{
    if (!handle[0])
        return ESPANK_SUCCESS;
    char **environment;
    if (spank_get_item(spank, S_JOB_ENV, &environment) != ESPANK_SUCCESS)
        return -1;
    const char *program = said(count, arguments, "keeptime");
    const char *socket = said(count, arguments, "socket");
    if (!program)
        program = "/usr/bin/keeptime";
    char process[32];
    snprintf(process, sizeof process, "%ld", (long)getpid());
    const char *words[] = {program, "bind", handle, "--pid", process, socket ? "--socket" : NULL, socket, NULL};
    int code = run(program, (char *const *)words, environment);
    if (code == 0)
        return ESPANK_SUCCESS;
    slurm_error("keeptime: this task cannot run in %s", handle);
    /* Errors of SPANK are positive numbers, by which Slurm 22.05 does not stop a task. */
    return -1;
}
