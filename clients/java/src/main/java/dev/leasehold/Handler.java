package dev.leasehold;

/** The maker of a request. All calls are on the loop. */
interface Handler {
  /** The whole answer is there, and the exchange is over. */
  void answered(Answer answer);

  /** The stream brought an event. */
  default void received(Event event) {}

  /** There is no answer, or the stream has ended. The exchange is over. */
  void broke(Problem problem);
}
