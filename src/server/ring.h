/* Lists whose entries are embedded in what they list, and can leave without being looked for. */
#ifndef HF_SERVER_RING_H
#define HF_SERVER_RING_H

#include <stdbool.h>
#include <stddef.h>

/* A head, or an entry; an entry that is in no list has no `next`. */
struct ring {
    struct ring *prev, *next;
};

static inline void ring_init(struct ring *head) { head->prev = head->next = head; }

static inline bool ring_is_empty(const struct ring *head) { return head->next == head; }

static inline bool ring_is_in(const struct ring *entry) { return entry->next; }

static inline void ring_leave(struct ring *entry)
{
    if (!entry->next)
        return;
    entry->prev->next = entry->next;
    entry->next->prev = entry->prev;
    entry->prev = entry->next = NULL;
}

/* To the end, wherever it was before. */
static inline void ring_enter(struct ring *head, struct ring *entry)
{
    ring_leave(entry);
    entry->next = head;
    entry->prev = head->prev;
    head->prev->next = entry;
    head->prev = entry;
}

#endif
