package leasehold_test

import (
	"context"
	"fmt"
	"time"

	"leasehold.dev/go/leasehold"
)

func Example() {
	run := func(ctx context.Context, invoices []string) error {
		lease, ctx, err := leasehold.Lock(ctx, "billing", leasehold.Wait(time.Minute))
		if err != nil {
			return err
		}
		defer lease.Release(ctx)
		for _, invoice := range invoices {
			if err := lease.Check(); err != nil {
				return err
			}
			fmt.Println("charges", invoice, "with token", lease.Token())
		}
		return nil
	}
	_ = run
}

func ExampleDo() {
	err := leasehold.Do(context.Background(), "nightly-report", func(ctx context.Context, lease *leasehold.Lease) error {
		fmt.Println("reports with token", lease.Token())
		return ctx.Err()
	}, leasehold.Wait(0))
	fmt.Println(err)
}

func ExampleClient_Elect() {
	client, err := leasehold.New("")
	if err != nil {
		return
	}
	election := client.Elect(context.Background(), "billing", leasehold.Callbacks{
		OnStartedLeading: func(ctx context.Context, lease *leasehold.Lease) {
			fmt.Println("leads with token", lease.Token())
			<-ctx.Done()
		},
	})
	defer election.Stop()
	fmt.Println(election.IsLeader())
}
