// Command etcdmutex locks and unlocks a concurrency.Mutex of etcd's own client, for `make bench`. It uses
// one keep-alive connection and one session, as the client's documentation shows.
//
// It prints one JSON object: the nanoseconds of each round, of the three kinds in `result`. Two kinds hand
// the lock over to a waiter. Their duration counts from the call of Unlock until the waiter's Lock returns.
// It is measured on CLOCK_BOOTTIME, which is the same in both processes.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"golang.org/x/sys/unix"
)

// The duration of the reads right before the unlock: they keep the machine and the connection awake. The
// bench does the same before it measures our own transfer.
const reads = 5 * time.Millisecond

// result is the output, in nanoseconds.
type result struct {
	// Uncontended is a lock and its unlock.
	Uncontended []int64 `json:"uncontended"`
	// SameProcess is a hand-over between two clients of one process.
	SameProcess []int64 `json:"sameProcess"`
	// TwoProcesses is a hand-over between two processes.
	TwoProcesses []int64 `json:"twoProcesses"`
}

func main() {
	endpoint := flag.String("endpoint", "", "how to reach etcd")
	var much much
	flag.IntVar(&much.rounds, "rounds", 100, "the number of measured uncontended rounds")
	flag.IntVar(&much.handOvers, "hand-overs", 10, "the number of measured hand-overs of each kind")
	flag.IntVar(&much.warmUp, "warm-up", 10, "the number of rounds of each kind that come first and are not measured")
	flag.DurationVar(&much.inLine, "in-line", 150*time.Millisecond, "how long the waiter is queued before the unlock")
	waits := flag.Bool("waits", false, "run as the waiter (the measuring process starts it)")
	flag.Parse()
	var err error
	if *waits {
		err = serve(*endpoint)
	} else {
		err = measure(*endpoint, much)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// much is the size of the measurement.
type much struct {
	rounds, handOvers, warmUp int
	// How long the waiter is queued before the unlock. A waiter's watch begins at a past revision. etcd
	// serves such a watch only in its next catch-up round, which runs every 100 ms. So a lock that is
	// released earlier is handed over only then.
	inLine time.Duration
}

func measure(endpoint string, much much) error {
	ours, err := dial(endpoint)
	if err != nil {
		return err
	}
	local, err := newLocal(endpoint)
	if err != nil {
		return err
	}
	remote, err := newRemote(endpoint)
	if err != nil {
		return err
	}
	var measured result
	measured.Uncontended, err = repeat(much.rounds, much.warmUp, ours.uncontended)
	if err != nil {
		return err
	}
	measured.SameProcess, err = repeat(much.handOvers, much.warmUp, func() (int64, error) {
		return ours.handOver(local, much.inLine)
	})
	if err != nil {
		return err
	}
	measured.TwoProcesses, err = repeat(much.handOvers, much.warmUp, func() (int64, error) {
		return ours.handOver(remote, much.inLine)
	})
	if err != nil {
		return err
	}
	if err := remote.close(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(measured)
}

// repeat runs the warm-up rounds, and then returns the durations of the measured rounds.
func repeat(times, warmUp int, call func() (int64, error)) ([]int64, error) {
	took := make([]int64, 0, times)
	for nth := range warmUp + times {
		nanoseconds, err := call()
		if err != nil {
			return nil, err
		}
		if nth >= warmUp {
			took = append(took, nanoseconds)
		}
	}
	return took, nil
}

// party is one client with one session.
type party struct {
	client  *clientv3.Client
	session *concurrency.Session
}

func dial(endpoint string) (*party, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: 5 * time.Second})
	if err != nil {
		return nil, err
	}
	session, err := concurrency.NewSession(client, concurrency.WithTTL(15))
	if err != nil {
		return nil, err
	}
	return &party{client, session}, nil
}

// uncontended locks and unlocks a mutex without other clients.
func (p *party) uncontended() (int64, error) {
	mutex := concurrency.NewMutex(p.session, "/bench/uncontended")
	begin := now()
	if err := mutex.Lock(context.Background()); err != nil {
		return 0, err
	}
	if err := mutex.Unlock(context.Background()); err != nil {
		return 0, err
	}
	return now() - begin, nil
}

const contended = "/bench/contended"

// handOver unlocks a mutex that another client waits for. That client reports when it got the lock, and
// unlocks it.
func (p *party) handOver(other waiter, inLine time.Duration) (int64, error) {
	mutex := concurrency.NewMutex(p.session, contended)
	if err := mutex.Lock(context.Background()); err != nil {
		return 0, err
	}
	if err := other.ask(); err != nil {
		return 0, err
	}
	if err := p.untilSomebodyWaits(inLine); err != nil {
		return 0, err
	}
	begin := now()
	if err := mutex.Unlock(context.Background()); err != nil {
		return 0, err
	}
	had, err := other.had()
	return had - begin, err
}

// untilSomebodyWaits polls until the queue has two entries, waits, and then keeps reading for the last
// part of the time.
func (p *party) untilSomebodyWaits(inLine time.Duration) error {
	var until int64
	for {
		queue, err := p.client.Get(context.Background(), contended+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return err
		}
		switch {
		case queue.Count < 2:
		case until == 0:
			time.Sleep(inLine - reads)
			until = now() + reads.Nanoseconds()
		case now() >= until:
			return nil
		}
	}
}

// now returns the time since boot, in nanoseconds.
func now() int64 {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &at); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return at.Nano()
}
