package dev.leasehold;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import org.jspecify.annotations.Nullable;

/**
 * The clock of all deadlines, in nanoseconds. It never steps, and on Linux it also runs while the
 * machine sleeps.
 *
 * <p>{@link System#nanoTime()} stands still during sleep, so this reads /proc/uptime, which has
 * steps of 10 ms. {@link #sent} is rounded down and {@link #now} is rounded up. A lease is
 * therefore never believed for longer than it is valid.
 */
final class Clock {
  private static final @Nullable RandomAccessFile UPTIME = open();
  private static final long UPTIME_STEP = 10_000_000;

  /** The difference between {@link #now} and {@link #sent}. */
  static final long STEP = UPTIME == null ? 0 : UPTIME_STEP;

  private Clock() {}

  /** Returns the time at which a request is sent, or a little less. */
  static long sent() {
    return UPTIME == null ? System.nanoTime() : read(UPTIME);
  }

  /** Returns the time, or a little more. */
  static long now() {
    return sent() + STEP;
  }

  private static @Nullable RandomAccessFile open() {
    try {
      RandomAccessFile file = new RandomAccessFile("/proc/uptime", "r");
      read(file);
      return file;
    } catch (IOException | UncheckedIOException | NumberFormatException notLinux) {
      return null;
    }
  }

  private static long read(RandomAccessFile file) {
    byte[] text = new byte[64];
    int length;
    // A FileChannel needs no lock, but the interrupt of a thread would close it.
    synchronized (file) {
      try {
        file.seek(0);
        length = file.read(text);
      } catch (IOException error) {
        throw new UncheckedIOException("reading /proc/uptime failed", error);
      }
    }
    String line = new String(text, 0, Math.max(0, length), StandardCharsets.US_ASCII);
    int point = line.indexOf('.');
    if (point < 1 || line.length() < point + 3) {
      throw new NumberFormatException("/proc/uptime has no seconds: " + line);
    }
    long seconds = Long.parseLong(line, 0, point, 10);
    long hundredths = Long.parseLong(line, point + 1, point + 3, 10);
    return (seconds * 100 + hundredths) * UPTIME_STEP;
  }
}
