"""A nightly job of APScheduler 3. Each replica schedules it, and one of them runs it."""

from datetime import datetime, timezone

from apscheduler.schedulers.blocking import BlockingScheduler

import leasehold

scheduler = BlockingScheduler(timezone=timezone.utc)


# A replica that waits takes over if the holder crashes. With wait=0, a replica whose clock is late
# would not notice that the work is done.
@scheduler.scheduled_job("cron", id="report", hour=2, misfire_grace_time=3600)
def report() -> None:
    """Does nothing if another replica has written the report of this day."""
    day = datetime.now(timezone.utc).date().isoformat()
    with leasehold.lock("nightly-report") as lease:
        if day not in lease.completed:
            for part in ["sales", "stock"]:
                print(f"writes {part} of {day} with {lease.headers}")
            lease.complete(day)


if __name__ == "__main__":
    scheduler.start()
