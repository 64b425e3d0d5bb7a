/** Server-sent events as values: text in, events out. */

import type { Document } from "./messages.js";

/** A server-sent event. */
export interface Event {
  readonly name: string;
  readonly data: Document;
}

/** The reader of one stream. Its text may be split anywhere. */
export class EventReader {
  #text = "";
  #name = "";
  #data: string[] = [];

  /** Returns the events that some text completes. */
  read(text: string): Event[] {
    const lines = (this.#text + text).split("\n");
    this.#text = lines.pop() ?? "";
    return lines.flatMap((line) => this.#line(line.endsWith("\r") ? line.slice(0, -1) : line));
  }

  /** How much text waits for the rest of an event. */
  get length(): number {
    return this.#data.reduce((sum, line) => sum + line.length, this.#text.length);
  }

  #line(line: string): Event[] {
    const split = line.indexOf(":");
    const field = split < 0 ? line : line.slice(0, split);
    const value = split < 0 ? "" : line.slice(split + 1).replace(/^ /, "");
    if (line === "") {
      return this.#dispatch();
    }
    if (field === "event") {
      this.#name = value;
    } else if (field === "data") {
      this.#data.push(value);
    }
    return [];
  }

  #dispatch(): Event[] {
    const event = { name: this.#name, data: parseObject(this.#data.join("\n")) };
    this.#name = "";
    this.#data = [];
    return event.name === "" ? [] : [event];
  }
}

/** Returns a JSON object, empty if the text is not one. */
export function parseObject(text: string): Document {
  try {
    const value: unknown = JSON.parse(text);
    const isObject = typeof value === "object" && value !== null && !Array.isArray(value);
    return isObject ? (value as Document) : {};
  } catch {
    return {};
  }
}
