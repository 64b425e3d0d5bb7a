// Command service guards a row of PostgreSQL, as docs/fencing-http.md shows it. $DATABASE is its URL, and $ADDRESS its own
// address. The writes of /unfenced are the same without the fence.
package main

import (
	"context"
	"io"
	"log"
	"net/http"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"leasehold.dev/go/leasehold/httpfence"
)

func main() {
	pool, err := pgxpool.New(context.Background(), os.Getenv("DATABASE"))
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	controls(mux, pool)
	mux.Handle("PUT /report", httpfence.Handler(func(w http.ResponseWriter, r *http.Request) error {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		ctx, token := r.Context(), httpfence.Token(r.Context())
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			batch := &pgx.Batch{}
			batch.Queue("SELECT leasehold.fence('report', $1)", token)
			batch.Queue("UPDATE report SET body = $1", string(body))
			return tx.SendBatch(ctx, batch).Close()
		})
	}))
	log.Fatal(http.ListenAndServe(os.Getenv("ADDRESS"), httpfence.Require(mux)))
}

// controls are what the story needs besides.
func controls(mux *http.ServeMux, pool *pgxpool.Pool) {
	mux.Handle("PUT /unfenced", httpfence.Handler(func(_ http.ResponseWriter, r *http.Request) error {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		_, err = pool.Exec(r.Context(), "UPDATE report SET body = $1", string(body))
		return err
	}))
	// The trigger of this table refuses writes beside the fence.
	mux.Handle("PUT /forgotten", httpfence.Handler(func(_ http.ResponseWriter, r *http.Request) error {
		_, err := pool.Exec(r.Context(), "UPDATE payout SET amount = 20")
		return err
	}))
}
