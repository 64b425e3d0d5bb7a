package example;

import dev.leasehold.LeaseholdClient;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.scheduling.annotation.EnableScheduling;

/** A pod of the app. Start it twice. */
@Configuration
@EnableScheduling
class App {
  @SuppressWarnings("resource") // The hook closes it.
  public static void main(String[] arguments) {
    new AnnotationConfigApplicationContext(App.class, LockedMethods.class, Billing.class)
        .registerShutdownHook();
  }

  @Bean
  LeaseholdClient leasehold() {
    return LeaseholdClient.create();
  }
}
