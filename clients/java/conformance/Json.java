import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.io.StringWriter;
import java.util.HashMap;
import java.util.Map;

/** The lines of the conformance suite: flat JSON objects. */
final class Json {
  private static final JsonFactory FACTORY = new JsonFactory();

  private Json() {}

  static Map<String, Object> parse(String line) throws IOException {
    Map<String, Object> fields = new HashMap<>();
    try (JsonParser parser = FACTORY.createParser(line)) {
      parser.nextToken();
      while (parser.nextToken() != JsonToken.END_OBJECT) {
        String name = parser.currentName();
        switch (parser.nextToken()) {
          case VALUE_STRING -> fields.put(name, parser.getText());
          case VALUE_NUMBER_INT, VALUE_NUMBER_FLOAT -> fields.put(name, parser.getDoubleValue());
          default -> {
            // Null is the same as absent.
          }
        }
      }
    }
    return fields;
  }

  static String write(Map<String, ?> fields) throws IOException {
    StringWriter line = new StringWriter();
    try (JsonGenerator generator = FACTORY.createGenerator(line)) {
      write(generator, fields);
    }
    return line.toString();
  }

  private static void write(JsonGenerator generator, Map<?, ?> fields) throws IOException {
    generator.writeStartObject();
    for (Map.Entry<?, ?> field : fields.entrySet()) {
      generator.writeFieldName((String) field.getKey());
      if (field.getValue() instanceof Map<?, ?> map) {
        write(generator, map);
      } else {
        generator.writePOJO(field.getValue());
      }
    }
    generator.writeEndObject();
  }
}
