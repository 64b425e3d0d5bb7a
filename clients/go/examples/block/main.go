// A guarded block: the work stops when the lock is lost.
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"time"

	"leasehold.dev/go/leasehold"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	lease, ctx, err := leasehold.Lock(ctx, "billing", leasehold.Wait(time.Minute))
	if err != nil {
		return err
	}
	defer lease.Release(ctx)
	for _, invoice := range []string{"a", "b", "c"} {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://billing.example/"+invoice, nil)
		if err != nil {
			return err
		}
		if err := lease.SetHeader(request.Header); err != nil {
			return err
		}
		fmt.Println("charges", invoice, "with", request.Header)
	}
	return nil
}
