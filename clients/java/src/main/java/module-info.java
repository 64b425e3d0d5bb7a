/** Locks for apps on Kubernetes, held by the Leasehold sidecar of the app's pod. */
module dev.leasehold {
  requires com.fasterxml.jackson.core;
  requires transitive java.net.http;
  requires static transitive org.jspecify;
  requires java.sql;
  // Only the package servlet needs it.
  requires static transitive jakarta.servlet;

  exports dev.leasehold;
  exports dev.leasehold.servlet;
}
