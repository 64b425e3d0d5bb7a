// A leader that works term after term. Ctrl-C steps down.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"leasehold.dev/go/leasehold"
)

var work = []string{"first", "second"}

func main() {
	client, err := leasehold.New("")
	if err != nil {
		log.Fatal(err)
	}
	ctx, done := signal.NotifyContext(context.Background(), os.Interrupt)
	election := client.Elect(ctx, "billing", leasehold.Callbacks{
		OnStartedLeading: func(ctx context.Context, lease *leasehold.Lease) {
			lead(ctx, lease)
			done()
		},
	})
	<-election.Done()
	if err := election.Err(); err != nil {
		log.Fatal(err)
	}
}

// lead returns when the lead is lost, or asked for, or all is done.
func lead(ctx context.Context, lease *leasehold.Lease) {
	for len(work) > 0 {
		select {
		case <-ctx.Done():
			return
		case <-lease.ReleaseRequested():
			return
		case <-time.After(100 * time.Millisecond):
		}
		fmt.Println("does the", work[0], "piece with token", lease.Token())
		work = work[1:]
	}
}
