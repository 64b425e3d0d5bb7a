// A task that one process runs at a time. Others do not wait for it, and skip it.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"

	"leasehold.dev/go/leasehold"
)

func main() {
	err := leasehold.Do(context.Background(), "nightly-report", report, leasehold.Wait(0))
	if held := (*leasehold.Error)(nil); errors.As(err, &held) && held.Kind == leasehold.ErrHeld {
		fmt.Println("skipped:", held.Detail)
	} else if err != nil {
		log.Fatal(err)
	}
}

func report(_ context.Context, lease *leasehold.Lease) error {
	fmt.Println("reports with token", lease.Token())
	return nil
}
