package example;

import dev.leasehold.servlet.FencingFilter;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.web.bind.annotation.PutMapping;
import org.springframework.web.bind.annotation.RequestAttribute;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RestController;

/**
 * A service that guards a row of PostgreSQL, as docs/fencing-http.md shows it. Its arguments set
 * the server and the database. The writes of /unfenced are the same without the fence.
 */
@SpringBootApplication
public class Service {
  public static void main(String[] args) {
    SpringApplication.run(Service.class, args);
  }

  @Bean
  FencingFilter fencing() {
    return new FencingFilter();
  }
}

@RestController
class Reports {
  private final JdbcTemplate database;

  Reports(JdbcTemplate database) {
    this.database = database;
  }

  @PutMapping("/report")
  @Transactional
  public void put(@RequestAttribute(FencingFilter.TOKEN) long token, @RequestBody String body) {
    database.queryForObject("SELECT leasehold.fence('report', ?)", Object.class, token);
    database.update("UPDATE report SET body = ?", body);
  }

  @PutMapping("/unfenced")
  public void putUnfenced(@RequestBody String body) {
    database.update("UPDATE report SET body = ?", body);
  }

  /** The trigger of this table refuses writes beside the fence. */
  @PutMapping("/forgotten")
  public void putForgotten() {
    database.update("UPDATE payout SET amount = 20");
  }
}
