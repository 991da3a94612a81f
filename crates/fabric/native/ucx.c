/* Frames over UCX: tagged messages of a worker for each connection, over the transports that the library
 * thinks best (or that UCX_TLS and UCX_NET_DEVICES name). */
#include "native.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucp/api/ucp.h>

/* How long the library may take to give an endpoint up. */
#define CLOSE_SECONDS 1
/* What lies behind another end's address: each byte says that a list ends there. The library reads to the end
 * of lists, wherever that is, and skips for each entry as much as a byte can count at most. */
#define BEHIND_ADDRESS 4096
#define END_OF_LISTS 0xff

/* What a request is about, as its callback is told. */
struct operation {
    native_end *end;
    uint32_t slot;
    int is_over;
    /* What the library calls it, until it is over. */
    void *request;
};

struct native_end {
    native_slots slots;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h endpoint;
    /* What has gone wrong since somebody was told. */
    ucs_status_t failure;
    /* A ring of slots that are the caller's again: as many as there are slots. */
    native_done *done;
    uint32_t first_done, count_done;
    struct operation operations[];
};

static void is_done(struct operation *operation, ucs_status_t status, uint64_t length)
{
    native_end *end = operation->end;
    uint32_t slots = 2 * end->slots.of_each;
    operation->is_over = 1;
    operation->request = NULL;
    if (status != UCS_OK) {
        end->failure = status;
        return;
    }
    end->done[(end->first_done + end->count_done++) % slots] =
        (native_done){ .slot = operation->slot, .length = length };
}

/* Keeps what is needed to give an operation up. Its callback may have been called already, or is yet to be. */
static int started(native_end *end, uint32_t slot, void *request)
{
    struct operation *operation = &end->operations[slot];
    if (UCS_PTR_IS_ERR(request))
        return UCS_PTR_STATUS(request);
    operation->request = operation->is_over ? NULL : request;
    return 0;
}

static void on_sent(void *request, ucs_status_t status, void *operation)
{
    is_done(operation, status, 0);
    ucp_request_free(request);
}

static void on_received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                        void *operation)
{
    is_done(operation, status, info->length);
    ucp_request_free(request);
}

static void on_failure(void *end, ucp_ep_h endpoint, ucs_status_t status)
{
    (void)endpoint;
    ((native_end *)end)->failure = status;
}

static void close_endpoint(native_end *end)
{
    /* An endpoint whose other end is not looked at would be flushed for ever, and a worker with such an
     * endpoint aborts the program. That all has arrived is the caller's business. */
    ucp_request_param_t how = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
    };
    struct timespec start, now;
    void *request;
    if (!end->endpoint)
        return;
    request = ucp_ep_close_nbx(end->endpoint, &how);
    if (!UCS_PTR_IS_PTR(request))
        return;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        ucp_worker_progress(end->worker);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (ucp_request_check_status(request) == UCS_INPROGRESS &&
             now.tv_sec - start.tv_sec <= CLOSE_SECONDS);
    ucp_request_free(request);
}

static void close_end(native_end *end)
{
    for (uint32_t slot = 0; end->worker && slot < end->slots.of_each; slot++)
        if (end->operations[slot].request)
            ucp_request_cancel(end->worker, end->operations[slot].request);
    close_endpoint(end);
    if (end->worker)
        ucp_worker_destroy(end->worker);
    if (end->context)
        ucp_cleanup(end->context);
    free(end->done);
    free(end);
}

static ucs_status_t open_context(native_end *end)
{
    ucp_params_t wanted = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP,
    };
    ucp_config_t *config;
    ucs_status_t failed = ucp_config_read(NULL, NULL, &config);
    if (failed != UCS_OK)
        return failed;
    failed = ucp_init(&wanted, config, &end->context);
    ucp_config_release(config);
    return failed;
}

static ucs_status_t open_worker(native_end *end)
{
    ucp_worker_params_t wanted = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
    };
    return ucp_worker_create(end->context, &wanted, &end->worker);
}

static native_end *open_end(const char *address, const native_slots *slots, char *why, size_t why_size)
{
    uint32_t count = 2 * slots->of_each;
    native_end *end = calloc(1, sizeof *end + count * sizeof end->operations[0]);
    const char *step = "no memory";
    ucs_status_t failed = UCS_ERR_NO_MEMORY;
    /* UCX looks for ways to the other end by itself. */
    (void)address;
    if (end) {
        end->slots = *slots;
        end->failure = UCS_OK;
        for (uint32_t slot = 0; slot < count; slot++)
            end->operations[slot] = (struct operation){ .end = end, .slot = slot };
        end->done = calloc(count, sizeof end->done[0]);
    }
    if (end && end->done) {
        step = "opening a context";
        failed = open_context(end);
    }
    if (failed == UCS_OK) {
        step = "opening a worker";
        failed = open_worker(end);
    }
    if (failed == UCS_OK)
        return end;
    snprintf(why, why_size, "%s: %s", step, ucs_status_string(failed));
    if (end)
        close_end(end);
    return NULL;
}

static long address(native_end *end, void *bytes, size_t most)
{
    ucp_address_t *own;
    size_t length;
    ucs_status_t failed = ucp_worker_get_address(end->worker, &own, &length);
    if (failed != UCS_OK)
        return failed;
    if (length <= most)
        memcpy(bytes, own, length);
    ucp_worker_release_address(end->worker, own);
    return length <= most ? (long)length : UCS_ERR_BUFFER_TOO_SMALL;
}

static ucs_status_t connect_to(native_end *end, const void *address)
{
    ucp_ep_params_t wanted = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = { .cb = on_failure, .arg = end },
    };
    return ucp_ep_create(end->worker, &wanted, &end->endpoint);
}

static int connect_end(native_end *end, const void *bytes, size_t length)
{
    char *address = malloc(length + BEHIND_ADDRESS);
    ucs_status_t failed;
    if (!address)
        return UCS_ERR_NO_MEMORY;
    memcpy(address, bytes, length);
    memset(address + length, END_OF_LISTS, BEHIND_ADDRESS);
    failed = connect_to(end, address);
    free(address);
    return failed;
}

static int receive(native_end *end, uint32_t slot)
{
    /* Some versions do not tell the length of what is there at once: all are told by the callback. */
    ucp_request_param_t how = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .cb.recv = on_received,
        .user_data = &end->operations[slot],
    };
    end->operations[slot].is_over = 0;
    return started(end, slot,
                   ucp_tag_recv_nbx(end->worker, native_slot(&end->slots, slot), end->slots.slot_size, 0, 0,
                                    &how));
}

static int send_slot(native_end *end, uint32_t slot, size_t length)
{
    ucp_request_param_t how = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = on_sent,
        .user_data = &end->operations[slot],
    };
    void *request;
    end->operations[slot].is_over = 0;
    request = ucp_tag_send_nbx(end->endpoint, native_slot(&end->slots, slot), length, 0, &how);
    if (!request)
        is_done(&end->operations[slot], UCS_OK, 0);
    return started(end, slot, request);
}

static int progress(native_end *end, native_done *done, int most)
{
    int told = 0;
    while (!end->count_done && ucp_worker_progress(end->worker))
        ;
    while (told < most && end->count_done) {
        done[told++] = end->done[end->first_done];
        end->first_done = (end->first_done + 1) % (2 * end->slots.of_each);
        end->count_done--;
    }
    return !told && end->failure != UCS_OK ? end->failure : told;
}

static int descriptor(native_end *end)
{
    int fd;
    return ucp_worker_get_efd(end->worker, &fd) == UCS_OK ? fd : -1;
}

static int sleep_end(native_end *end)
{
    return !end->count_done && end->failure == UCS_OK && ucp_worker_arm(end->worker) == UCS_OK;
}

static const char *text(int error)
{
    return ucs_status_string((ucs_status_t)error);
}

const native_library keeptime_native_ucx = {
    .open = open_end,
    .address = address,
    .connect = connect_end,
    .receive = receive,
    .send = send_slot,
    .progress = progress,
    .descriptor = descriptor,
    .sleep = sleep_end,
    .close = close_end,
    .text = text,
};
