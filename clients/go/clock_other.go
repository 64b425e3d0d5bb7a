//go:build !linux

package leasehold

import "time"

var start = time.Now()

// now returns the time since the process started, on Go's monotonic clock. On some systems it stands
// still while the machine sleeps.
func now() time.Duration {
	return time.Since(start)
}
