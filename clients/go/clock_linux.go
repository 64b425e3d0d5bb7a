package leasehold

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// now returns the time since the machine's start, on a clock that never steps and that also runs while
// the machine sleeps. Go's own monotonic clock stands still meanwhile.
func now() time.Duration {
	var read unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &read); err != nil {
		panic(fmt.Sprintf("leasehold: this kernel has no CLOCK_BOOTTIME: %v", err))
	}
	return time.Duration(read.Nano())
}
