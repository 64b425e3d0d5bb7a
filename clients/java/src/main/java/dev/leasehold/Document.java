package dev.leasehold;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/** A JSON object. Fields that it lacks, or that have another type, are absent. */
record Document(Map<String, @Nullable Object> fields) {
  static final Document EMPTY = new Document(Map.of());
  private static final JsonFactory FACTORY = new JsonFactory();

  /** The answer does not have what an answer of a sidecar must have. */
  static final class UnreadableException extends RuntimeException {
    private static final long serialVersionUID = 1;

    UnreadableException(String message) {
      super(message);
    }
  }

  /** Parses an object; returns an empty one for anything else. */
  static Document parse(byte[] text) {
    try (JsonParser parser = FACTORY.createParser(text)) {
      return parser.nextToken() == JsonToken.START_OBJECT ? object(parser) : EMPTY;
    } catch (IOException notJson) {
      return EMPTY;
    }
  }

  private static Document object(JsonParser parser) throws IOException {
    Map<String, @Nullable Object> fields = new LinkedHashMap<>();
    while (parser.nextToken() != JsonToken.END_OBJECT) {
      String name = parser.currentName();
      parser.nextToken();
      fields.put(name, value(parser));
    }
    return new Document(fields);
  }

  private static @Nullable Object value(JsonParser parser) throws IOException {
    return switch (parser.currentToken()) {
      case START_OBJECT -> object(parser);
      case START_ARRAY -> {
        List<@Nullable Object> values = new ArrayList<>();
        while (parser.nextToken() != JsonToken.END_ARRAY) {
          values.add(value(parser));
        }
        yield values;
      }
      case VALUE_NUMBER_INT -> parser.getNumberValue();
      case VALUE_STRING -> parser.getText();
      case VALUE_TRUE, VALUE_FALSE -> parser.getBooleanValue();
      // No field that this client reads has another type.
      default -> null;
    };
  }

  /** Returns it as JSON. Values are strings, numbers, booleans, and maps of them. */
  byte[] toJson() {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    try (JsonGenerator generator = FACTORY.createGenerator(bytes)) {
      write(generator, fields);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    return bytes.toByteArray();
  }

  private static void write(JsonGenerator generator, Map<?, ?> fields) throws IOException {
    generator.writeStartObject();
    for (Map.Entry<?, ?> field : fields.entrySet()) {
      generator.writeFieldName(String.valueOf(field.getKey()));
      Object value = field.getValue();
      if (value instanceof Map<?, ?> map) {
        write(generator, map);
      } else {
        generator.writePOJO(value);
      }
    }
    generator.writeEndObject();
  }

  @Nullable String text(String name) {
    return fields.get(name) instanceof String text ? text : null;
  }

  String text(String name, String otherwise) {
    String text = text(name);
    return text == null ? otherwise : text;
  }

  @Nullable Long number(String name) {
    Object value = fields.get(name);
    return value instanceof Integer || value instanceof Long ? ((Number) value).longValue() : null;
  }

  long number(String name, long otherwise) {
    Long number = number(name);
    return number == null ? otherwise : number;
  }

  boolean flag(String name) {
    return fields.get(name) instanceof Boolean flag && flag;
  }

  /** Returns the texts of an object; none if it is absent. */
  Map<String, String> map(String name) {
    Document document = document(name);
    Map<String, String> texts = new LinkedHashMap<>();
    if (document != null) {
      document.fields.forEach(
          (key, value) -> {
            if (value instanceof String text) {
              texts.put(key, text);
            }
          });
    }
    return Map.copyOf(texts);
  }

  <T> @Nullable T record(String name, Function<Document, T> of) {
    Document document = document(name);
    return document == null ? null : of.apply(document);
  }

  private @Nullable Document document(String name) {
    return fields.get(name) instanceof Document document ? document : null;
  }

  List<String> texts(String name) {
    List<String> texts = new ArrayList<>();
    if (fields.get(name) instanceof List<?> values) {
      for (Object value : values) {
        if (value instanceof String text) {
          texts.add(text);
        }
      }
    }
    return List.copyOf(texts);
  }
}
