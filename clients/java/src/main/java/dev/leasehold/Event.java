package dev.leasehold;

/** A server-sent event. The data is empty if it is not a JSON object. */
record Event(String name, Document data) {}
