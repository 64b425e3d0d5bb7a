package dev.leasehold;

/** The logger of this library. */
final class Log {
  static final System.Logger LOG = System.getLogger("dev.leasehold");

  private Log() {}
}
