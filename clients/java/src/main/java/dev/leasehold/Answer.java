package dev.leasehold;

/** A whole answer. The document is empty if the body is not a JSON object. */
record Answer(int status, Document document) {}
