package example;

import static java.lang.System.Logger.Level.INFO;

import dev.leasehold.Lease;
import dev.leasehold.LeaseholdClient;
import dev.leasehold.LockHeldException;
import dev.leasehold.LockOptions;
import java.lang.reflect.Method;
import org.aopalliance.intercept.MethodInterceptor;
import org.aopalliance.intercept.MethodInvocation;
import org.springframework.aop.framework.autoproxy.AbstractBeanFactoryAwareAdvisingPostProcessor;
import org.springframework.aop.support.AopUtils;
import org.springframework.aop.support.DefaultPointcutAdvisor;
import org.springframework.aop.support.annotation.AnnotationMatchingPointcut;
import org.springframework.beans.factory.ObjectProvider;

/** Puts the lock around the methods of all beans that have {@link Locked}. */
@SuppressWarnings("serial") // No proxy is serialized.
class LockedMethods extends AbstractBeanFactoryAwareAdvisingPostProcessor {
  private static final System.Logger LOG = System.getLogger("example");
  private static final ThreadLocal<Lease> CURRENT = new ThreadLocal<>();

  LockedMethods(ObjectProvider<LeaseholdClient> client) {
    setProxyTargetClass(true);
    MethodInterceptor around = call -> run(client.getObject(), call);
    advisor =
        new DefaultPointcutAdvisor(new AnnotationMatchingPointcut(null, Locked.class), around);
  }

  /**
   * Returns the lease of the method that this thread runs. Hand it to other threads that write for
   * the method.
   */
  static Lease lease() {
    Lease lease = CURRENT.get();
    if (lease == null) {
      throw new IllegalStateException("no method with @Locked runs in this thread");
    }
    return lease;
  }

  private static Object run(LeaseholdClient client, MethodInvocation call) throws Throwable {
    // The bean may be a proxy already, whose method is that of an interface.
    Method method = AopUtils.getMostSpecificMethod(call.getMethod(), call.getThis().getClass());
    if (method.getReturnType() != void.class) {
      throw new IllegalStateException("must return void for @Locked: " + method);
    }
    String name = method.getAnnotation(Locked.class).value();
    Lease lease;
    try {
      lease = client.lock(name, LockOptions.defaults().tryOnce());
    } catch (LockHeldException held) {
      LOG.log(INFO, "skipped: {0}", held.detail());
      return null;
    }
    Lease outer = CURRENT.get();
    try (lease) {
      lease.interruptOnLoss();
      CURRENT.set(lease);
      return call.proceed();
    } finally {
      CURRENT.set(outer);
    }
  }
}
