/* Frames over libfabric: reliable datagram endpoints, one for each connection, of the provider that the
 * library thinks best for the network (or that FI_PROVIDER names), among those that can be opened. */
#include "native.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The interface that is asked for. A library that is older refuses to be asked for more than it has; all that is used here
 * has been in it since 1.5. */
#define INTERFACE FI_VERSION(1, 14)
#define READ_AT_ONCE 16

struct native_end {
    native_slots slots;
    /* All that the library offers, the best first, and what of it is open. */
    struct fi_info *offers, *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_cq *queue;
    struct fid_av *addresses;
    struct fid_ep *endpoint;
    struct fid_mr *registered;
    /* -1: the provider cannot wake. */
    int descriptor;
    fi_addr_t peer;
    /* One for each slot: providers may keep something of theirs there. */
    struct fi_context2 contexts[];
};

static void *local_key(const native_end *end)
{
    return end->registered ? fi_mr_desc(end->registered) : NULL;
}

static uint32_t interface_of_library(void)
{
    const uint32_t newest = INTERFACE, own = fi_version();
    return own < newest ? own : newest;
}

static int find_providers(native_end *end, const char *address)
{
    const uint32_t interface = interface_of_library();
    struct fi_info *hints = fi_allocinfo();
    int failed;
    if (!hints)
        return -FI_ENOMEM;
    hints->ep_attr->type = FI_EP_RDM;
    /* Not one that reaches this node alone. */
    hints->caps = FI_MSG | FI_LOCAL_COMM | FI_REMOTE_COMM;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->max_msg_size = end->slots.slot_size;
    hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
    /* Told as sent when it does not depend on this process any more. */
    hints->tx_attr->op_flags = FI_TRANSMIT_COMPLETE;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
    failed = fi_getinfo(interface, address, NULL, FI_SOURCE, hints, &end->offers);
    /* Networks that are no IP networks know no such address. */
    if (failed)
        failed = fi_getinfo(interface, NULL, NULL, 0, hints, &end->offers);
    fi_freeinfo(hints);
    return failed;
}

static int open_queue(native_end *end)
{
    struct fi_cq_attr wanted = {
        .size = 2 * (size_t)end->slots.of_each,
        .format = FI_CQ_FORMAT_MSG,
        .wait_obj = FI_WAIT_FD,
    };
    int failed = fi_cq_open(end->domain, &wanted, &end->queue, NULL);
    end->descriptor = -1;
    if (!failed)
        return fi_control(&end->queue->fid, FI_GETWAIT, &end->descriptor);
    wanted.wait_obj = FI_WAIT_NONE;
    return fi_cq_open(end->domain, &wanted, &end->queue, NULL);
}

static int open_endpoint(native_end *end)
{
    struct fi_av_attr wanted = { .type = FI_AV_UNSPEC, .count = 1 };
    int failed = fi_av_open(end->domain, &wanted, &end->addresses, NULL);
    if (!failed)
        failed = fi_endpoint(end->domain, end->info, &end->endpoint, NULL);
    if (!failed)
        failed = fi_ep_bind(end->endpoint, &end->addresses->fid, 0);
    if (!failed)
        failed = fi_ep_bind(end->endpoint, &end->queue->fid, FI_TRANSMIT | FI_RECV);
    return failed ? failed : fi_enable(end->endpoint);
}

static int register_slots(native_end *end)
{
    size_t length = 2 * (size_t)end->slots.of_each * end->slots.slot_size;
    if (!(end->info->domain_attr->mr_mode & FI_MR_LOCAL))
        return 0;
    return fi_mr_reg(end->domain, end->slots.memory, length, FI_SEND | FI_RECV, 0, 0, 0,
                     &end->registered, NULL);
}

static void close_network(native_end *end)
{
    /* In an order in which nothing is closed that another one uses. */
    struct fid *opened[] = {
        end->endpoint ? &end->endpoint->fid : NULL,     end->registered ? &end->registered->fid : NULL,
        end->addresses ? &end->addresses->fid : NULL,   end->queue ? &end->queue->fid : NULL,
        end->domain ? &end->domain->fid : NULL,         end->fabric ? &end->fabric->fid : NULL,
    };
    for (size_t i = 0; i < sizeof opened / sizeof opened[0]; i++)
        if (opened[i])
            fi_close(opened[i]);
    end->endpoint = NULL;
    end->registered = NULL;
    end->addresses = NULL;
    end->queue = NULL;
    end->domain = NULL;
    end->fabric = NULL;
}

static void close_end(native_end *end)
{
    close_network(end);
    if (end->offers)
        fi_freeinfo(end->offers);
    free(end);
}

/* What is open when this fails is left to `close_network`. */
static int open_network(native_end *end, struct fi_info *info, const char **step)
{
    int failed;
    end->info = info;
    *step = "opening its network";
    failed = fi_fabric(info->fabric_attr, &end->fabric, NULL);
    if (!failed)
        failed = fi_domain(end->fabric, info, &end->domain, NULL);
    if (!failed) {
        *step = "opening a queue";
        failed = open_queue(end);
    }
    if (!failed) {
        *step = "opening an endpoint";
        failed = open_endpoint(end);
    }
    if (!failed) {
        *step = "registering memory";
        failed = register_slots(end);
    }
    return failed;
}

static native_end *open_end(const char *address, const native_slots *slots, char *why, size_t why_size)
{
    native_end *end = calloc(1, sizeof *end + 2 * (size_t)slots->of_each * sizeof end->contexts[0]);
    const char *step;
    int failed = -FI_ENOMEM;
    if (end) {
        end->slots = *slots;
        failed = find_providers(end, address);
    }
    if (failed) {
        snprintf(why, why_size, "finding a provider: %s", fi_strerror(abs(failed)));
        free(end);
        return NULL;
    }
    /* The library offers RDMA also where a card has not the queues that its provider asks for then. */
    for (struct fi_info *info = end->offers; info; info = info->next) {
        failed = open_network(end, info, &step);
        if (!failed)
            return end;
        if (info == end->offers)
            snprintf(why, why_size, "%s, %s: %s", info->fabric_attr->prov_name, step,
                     fi_strerror(abs(failed)));
        close_network(end);
    }
    close_end(end);
    return NULL;
}

static const char *provider(const native_end *end)
{
    return end->info->fabric_attr->prov_name;
}

/* Behind its provider's name: addresses of several look alike, and lead nowhere from another one. */
static long address(native_end *end, void *bytes, size_t most)
{
    size_t name = strlen(provider(end)) + 1, length;
    int failed;
    if (name > most)
        return -FI_ETOOSMALL;
    memcpy(bytes, provider(end), name);
    length = most - name;
    failed = fi_getname(&end->endpoint->fid, (char *)bytes + name, &length);
    return failed ? failed : (long)(name + length);
}

static int connect_end(native_end *end, const void *bytes, size_t length)
{
    size_t name = strnlen(bytes, length);
    if (name == length)
        return -FI_EADDRNOTAVAIL;
    if (strcmp(bytes, provider(end)))
        return 1;
    /* How long an address is follows from what the library chose: the other end has to have chosen alike. */
    if (length - name - 1 != end->info->src_addrlen)
        return -FI_EADDRNOTAVAIL;
    bytes = (const char *)bytes + name + 1;
    return fi_av_insert(end->addresses, bytes, 1, &end->peer, 0, NULL) == 1 ? 0 : -FI_EADDRNOTAVAIL;
}

static int receive(native_end *end, uint32_t slot)
{
    ssize_t failed = fi_recv(end->endpoint, native_slot(&end->slots, slot), end->slots.slot_size,
                             local_key(end), FI_ADDR_UNSPEC, &end->contexts[slot]);
    return failed == -FI_EAGAIN ? 1 : (int)failed;
}

static int send_slot(native_end *end, uint32_t slot, size_t length)
{
    ssize_t failed = fi_send(end->endpoint, native_slot(&end->slots, slot), length, local_key(end),
                             end->peer, &end->contexts[slot]);
    return failed == -FI_EAGAIN ? 1 : (int)failed;
}

static int progress(native_end *end, native_done *done, int most)
{
    struct fi_cq_msg_entry entries[READ_AT_ONCE];
    struct fi_cq_err_entry error = { 0 };
    ssize_t read = fi_cq_read(end->queue, entries, most < READ_AT_ONCE ? most : READ_AT_ONCE);
    if (read == -FI_EAGAIN)
        return 0;
    if (read == -FI_EAVAIL) {
        read = fi_cq_readerr(end->queue, &error, 0);
        return read == 1 ? -abs(error.err) : (int)read;
    }
    for (ssize_t i = 0; i < read; i++) {
        uint32_t slot = (uint32_t)((struct fi_context2 *)entries[i].op_context - end->contexts);
        done[i].slot = slot;
        done[i].length = slot < end->slots.of_each ? entries[i].len : 0;
    }
    return (int)read;
}

static int descriptor(native_end *end)
{
    return end->descriptor;
}

static int sleep_end(native_end *end)
{
    struct fid *asleep[] = { &end->queue->fid };
    return end->descriptor >= 0 && fi_trywait(end->fabric, asleep, 1) == FI_SUCCESS;
}

static const char *text(int error)
{
    return fi_strerror(abs(error));
}

const native_library keeptime_native_libfabric = {
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
