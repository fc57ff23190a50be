/*
 * A holder or waiter that is bound to processes can be judged only on their own machine: the server
 * asks us to look at those whose processes are `here`. Whom we looked at last for a name is
 * remembered and sent along the next time, so that who asks again and again needs one round trip.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "postgres_store.h"

/* Remembered are those who take turns at a name; one request may have to know of a holder, and of nine. */
enum { SLOTS = 64, REMEMBERED_MAX = 40, CANDIDATES_MAX = 1 << 16 };

struct slot {
    char name[HF_NAME_MAX + 1];
    struct hf_pg_candidate seen[REMEMBERED_MAX];
    size_t n;
};

struct hf_pg_memory {
    pthread_mutex_t mutex;
    struct slot slots[SLOTS]; /* a name has one place; another one with that place displaces it */
};

/* ---- as text -------------------------------------------------------------------------------- */

void hf_pg_list_seen(const struct hf_pg_seen *seen, bool dead, struct hf_buf *ret)
{
    const char *before = "{\"";
    ret->len = 0;
    for (size_t i = 0; i < seen->n; i++) {
        if (seen->of[i].dead != dead)
            continue;
        hf_buf_add(ret, before, strlen(before));
        hf_buf_add(ret, seen->of[i].key, strlen(seen->of[i].key));
        before = "\",\"";
    }
    hf_buf_printf(ret, "%s", ret->len ? "\"}" : "{}");
}

/* ---- looking -------------------------------------------------------------------------------- */

void hf_pg_seen_clear(struct hf_pg_seen *seen)
{
    free(seen->of);
    *seen = (struct hf_pg_seen){0};
}

/* A place for them: their own, or a new one; NULL where there are too many. */
static struct hf_pg_candidate *place_for(struct hf_pg_seen *seen, const char *key)
{
    for (size_t i = 0; i < seen->n; i++)
        if (strcmp(seen->of[i].key, key) == 0)
            return &seen->of[i];
    if (seen->n == seen->size) {
        size_t size = seen->size ? 2 * seen->size : REMEMBERED_MAX;
        void *of = size > CANDIDATES_MAX ? NULL : realloc(seen->of, size * sizeof *seen->of);
        if (!of)
            return NULL;
        seen->of = of;
        seen->size = size;
    }
    strcpy(seen->of[seen->n].key, key);
    return &seen->of[seen->n++];
}

/* Only a certain death counts. */
static void judge(struct hf_pg_candidate *c) { c->dead = hf_processes_alive(&c->bound) == HF_DEAD; }

/* How they are told: as they are, or where that is not our way to write them, by the lock_id. */
static void make_key(const char *line, const struct hf_processes *bound, size_t n,
                     char ret[HF_PROCESSES_TEXT_MAX])
{
    const char *processes = line + HF_LOCK_ID_LEN + 1;
    n -= HF_LOCK_ID_LEN + 1;
    hf_processes_format(bound, ret);
    if (strlen(ret) != n || strncmp(processes, ret, n) != 0)
        snprintf(ret, HF_PROCESSES_TEXT_MAX, "\\\\x%.*s", HF_LOCK_ID_LEN, line);
}

/* A line of `n` bytes: lock_id, processes. True: they were not known before. */
static bool look_at(struct hf_pg_seen *seen, const char *line, size_t n)
{
    char key[HF_PROCESSES_TEXT_MAX];
    struct hf_processes bound;
    struct hf_lock_id id;
    size_t before = seen->n;
    snprintf(key, sizeof key, "%.*s", HF_LOCK_ID_LEN, line);
    if (!hf_lock_id_parse(key, &id))
        return false;
    snprintf(key, sizeof key, "%.*s", (int)(n - HF_LOCK_ID_LEN - 1), line + HF_LOCK_ID_LEN + 1);
    hf_processes_parse(key, &bound);
    make_key(line, &bound, n, key);
    struct hf_pg_candidate *c = place_for(seen, key);
    if (!c)
        return false;
    c->bound = bound;
    judge(c);
    return seen->n > before;
}

bool hf_pg_look(struct hf_pg_seen *seen, const char *lines)
{
    bool any_new = false;
    while (*lines) {
        size_t n = strcspn(lines, "\n");
        if (n > HF_LOCK_ID_LEN + 1)
            any_new |= look_at(seen, lines, n);
        lines += n + (lines[n] == '\n');
    }
    return any_new;
}

/* ---- remembering ---------------------------------------------------------------------------- */

struct hf_pg_memory *hf_pg_memory_new(void)
{
    struct hf_pg_memory *memory = calloc(1, sizeof *memory);
    if (memory)
        pthread_mutex_init(&memory->mutex, NULL);
    return memory;
}

void hf_pg_memory_free(struct hf_pg_memory *memory)
{
    if (!memory)
        return;
    pthread_mutex_destroy(&memory->mutex);
    free(memory);
}

static struct slot *slot_of(struct hf_pg_memory *memory, const char *name)
{
    uint32_t hash = 2166136261; /* FNV-1a */
    for (const char *c = name; *c; c++)
        hash = (hash ^ (uint8_t)*c) * 16777619;
    return &memory->slots[hash % SLOTS];
}

void hf_pg_recall(struct hf_pg_memory *memory, const char *name, struct hf_pg_seen *ret)
{
    struct slot *slot = slot_of(memory, name);
    struct hf_pg_candidate seen[REMEMBERED_MAX];
    size_t n = 0;
    pthread_mutex_lock(&memory->mutex);
    if (strcmp(slot->name, name) == 0)
        for (; n < slot->n; n++)
            seen[n] = slot->seen[n];
    pthread_mutex_unlock(&memory->mutex);
    while (n-- > 0) { /* the newest last */
        judge(&seen[n]);
        /* The token may have come back meanwhile with other processes: then those must be dead. */
        bool is_token = seen[n].key[0] == '\\';
        struct hf_pg_candidate *c = is_token && seen[n].dead ? NULL : place_for(ret, seen[n].key);
        if (c)
            *c = seen[n];
    }
}

void hf_pg_remember(struct hf_pg_memory *memory, const char *name, const struct hf_pg_seen *seen)
{
    struct slot *slot = slot_of(memory, name);
    if (!seen->n) /* nobody was asked for: what is remembered may still be of use */
        return;
    pthread_mutex_lock(&memory->mutex);
    strcpy(slot->name, name);
    slot->n = 0;
    /* The newest: who was asked for last is who stands in the way now. */
    for (size_t i = seen->n; i > 0 && slot->n < REMEMBERED_MAX; i--)
        if (!seen->of[i - 1].dead)
            slot->seen[slot->n++] = seen->of[i - 1];
    pthread_mutex_unlock(&memory->mutex);
}
