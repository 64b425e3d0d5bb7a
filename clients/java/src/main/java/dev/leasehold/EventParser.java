package dev.leasehold;

import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.function.Consumer;

/**
 * Splits a stream into server-sent events. It works on bytes, since a packet may end within a
 * character.
 */
final class EventParser {
  private final Consumer<Event> sink;
  private final ByteArrayOutputStream line = new ByteArrayOutputStream();
  private final ByteArrayOutputStream data = new ByteArrayOutputStream();
  private String name = "";

  EventParser(Consumer<Event> sink) {
    this.sink = sink;
  }

  /** Takes bytes, and passes on the events that they complete. */
  void take(byte[] bytes) {
    for (byte each : bytes) {
      if (each == '\n') {
        takeLine();
      } else if (each != '\r') {
        line.write(each);
      }
    }
  }

  /** Returns how many bytes wait for the rest of their event. */
  int size() {
    return line.size() + data.size();
  }

  private void takeLine() {
    String text = line.toString(StandardCharsets.UTF_8);
    line.reset();
    if (text.isEmpty()) {
      Event event = new Event(name, Document.parse(data.toByteArray()));
      data.reset();
      name = "";
      if (!event.name().isEmpty()) {
        sink.accept(event);
      }
      return;
    }
    int colon = text.indexOf(':');
    String value = colon < 0 ? "" : text.substring(colon + 1).strip();
    switch (colon < 0 ? text : text.substring(0, colon)) {
      case "event" -> name = value;
      case "data" -> {
        data.writeBytes(value.getBytes(StandardCharsets.UTF_8));
        data.write('\n');
      }
      default -> {
        // A comment, or a field that this client does not need.
      }
    }
  }
}
