/**
 * Refuses stale writers in a service of Jakarta Servlet, such as one of Spring. Begin with {@link
 * dev.leasehold.servlet.FencingFilter}.
 */
@NullMarked
package dev.leasehold.servlet;

import org.jspecify.annotations.NullMarked;
