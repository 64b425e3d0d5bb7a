// Command conformance does what the conformance suite says (clients/README.md): calls are lines of JSON
// on the standard input, answers are lines on the standard output.
//
//	conformance URL
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"

	"leasehold.dev/go/leasehold"
)

// call is a line of the suite.
type call struct {
	ID       int      `json:"id"`
	Call     string   `json:"call"`
	Lease    string   `json:"lease"`
	Resource string   `json:"resource"`
	Election string   `json:"election"`
	Wait     *float64 `json:"wait"`
	TTL      *float64 `json:"ttl"`
	Seconds  float64  `json:"seconds"`
	Count    int      `json:"count"`
}

type values map[string]any

var output sync.Mutex

// say prints a line as a whole.
func say(line values) {
	output.Lock()
	defer output.Unlock()
	if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
		os.Exit(1)
	}
}

func (c *call) answer(line values) {
	line["id"] = c.ID
	say(line)
}

// refuse answers with an error.
func (c *call) refuse(err error) {
	kinds := map[error]string{
		leasehold.ErrHeld: "held", leasehold.ErrLost: "lost",
		leasehold.ErrUnavailable: "unavailable", leasehold.ErrRefused: "refused",
	}
	line := values{"error": "other", "code": "", "detail": err.Error()}
	if of := (*leasehold.Error)(nil); errors.As(err, &of) {
		line["error"], line["code"] = kinds[of.Kind], of.Code
	}
	c.answer(line)
}

func (c *call) options() []leasehold.Option {
	var options []leasehold.Option
	if c.Wait != nil {
		options = append(options, leasehold.Wait(seconds(*c.Wait)))
	}
	if c.TTL != nil {
		options = append(options, leasehold.TTL(seconds(*c.TTL)))
	}
	return options
}

func seconds(count float64) time.Duration {
	return time.Duration(count * float64(time.Second))
}

// app is what the driver holds.
type app struct {
	client    *leasehold.Client
	blocks    map[string]chan call
	elections map[string]*leasehold.Election
	many      []*leasehold.Lease
}

func (a *app) do(c call) {
	switch c.Call {
	case "lock":
		calls := make(chan call)
		a.blocks[c.Lease] = calls
		go a.block(c, calls)
	case "many":
		a.acquireMany(&c)
	case "check-many":
		held := 0
		for _, lease := range a.many {
			if lease.Check() == nil {
				held++
			}
		}
		c.answer(values{"held": held})
	case "busy":
		busy(seconds(c.Seconds))
		c.answer(values{})
	case "round":
		a.round(&c)
	case "start":
		program := exec.Command("sleep", "120")
		if err := program.Start(); err != nil {
			c.refuse(err)
			return
		}
		c.answer(values{"pid": program.Process.Pid})
	case "elect", "leads", "step-down":
		a.elect(&c)
	default:
		a.blocks[c.Lease] <- c
	}
}

// block is a guarded block, which ends with the call "release".
func (a *app) block(begin call, calls <-chan call) {
	last := begin
	err := a.client.Do(context.Background(), begin.Resource, func(ctx context.Context, lease *leasehold.Lease) error {
		context.AfterFunc(ctx, func() {
			if errors.Is(context.Cause(ctx), leasehold.ErrLost) {
				say(values{"lost": begin.Lease, "reason": lease.Reason()})
			}
		})
		begin.answer(values{"token": lease.Token(), "leaseId": lease.ID()})
		for last = range calls {
			if last.Call == "release" {
				return nil
			}
			ask(lease, &last)
		}
		return nil
	}, begin.options()...)
	if err != nil {
		last.refuse(err)
		return
	}
	last.answer(values{})
}

// ask answers what concerns one lease.
func ask(lease *leasehold.Lease, c *call) {
	header := http.Header{}
	err := lease.Check()
	if c.Call == "headers" {
		err = lease.SetHeader(header)
	}
	if err != nil {
		c.refuse(err)
		return
	}
	c.answer(values{
		"remaining": lease.Remaining().Seconds(),
		"headers":   map[string]string{leasehold.HeaderName: header.Get(leasehold.HeaderName)},
	})
}

func (a *app) acquireMany(c *call) {
	for n := range c.Count {
		name := fmt.Sprintf("%s-%d", c.Resource, n)
		lease, _, err := a.client.Lock(context.Background(), name, c.options()...)
		if err != nil {
			c.refuse(err)
			return
		}
		a.many = append(a.many, lease)
	}
	c.answer(values{"held": len(a.many)})
}

// round measures one lock and unlock.
func (a *app) round(c *call) {
	start := time.Now()
	lease, ctx, err := a.client.Lock(context.Background(), c.Resource, c.options()...)
	if err == nil {
		err = lease.Release(ctx)
	}
	if err != nil {
		c.refuse(err)
		return
	}
	c.answer(values{"ms": time.Since(start).Seconds() * 1000})
}

func (a *app) elect(c *call) {
	switch c.Call {
	case "elect":
		a.elections[c.Election] = a.client.Elect(context.Background(), c.Election, leasehold.Callbacks{})
		c.answer(values{})
	case "step-down":
		a.elections[c.Election].Stop()
		c.answer(values{})
	case "leads":
		line := values{"leads": a.elections[c.Election].IsLeader()}
		if lease := a.elections[c.Election].Lease(); lease != nil {
			line["token"] = lease.Token()
		}
		c.answer(line)
	}
}

// busy computes on every processor.
func busy(length time.Duration) {
	var group sync.WaitGroup
	end := time.Now().Add(length)
	for range runtime.GOMAXPROCS(0) {
		group.Add(1)
		go func() {
			defer group.Done()
			for time.Now().Before(end) {
			}
		}()
	}
	group.Wait()
}

func main() {
	client, err := leasehold.New(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	say(values{"version": leasehold.Version})
	app := &app{client: client, blocks: map[string]chan call{}, elections: map[string]*leasehold.Election{}}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var c call
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		app.do(c)
	}
}
