package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"go.etcd.io/etcd/client/v3/concurrency"
)

// waiter is a client that waits for the lock on request, and unlocks it as soon as it has it.
type waiter interface {
	// ask makes it wait for the lock, and returns immediately.
	ask() error
	// had returns when the waiter got the lock. By then the lock is free again.
	had() (int64, error)
}

// visit waits for the lock and unlocks it. It returns when the lock was acquired.
func (p *party) visit() (int64, error) {
	mutex := concurrency.NewMutex(p.session, contended)
	if err := mutex.Lock(context.Background()); err != nil {
		return 0, err
	}
	had := now()
	return had, mutex.Unlock(context.Background())
}

// local waits in this process, with its own client and session.
type local struct {
	party *party
	asked chan struct{}
	said  chan visited
}

type visited struct {
	had int64
	err error
}

func newLocal(endpoint string) (*local, error) {
	party, err := dial(endpoint)
	if err != nil {
		return nil, err
	}
	l := &local{party, make(chan struct{}), make(chan visited)}
	go func() {
		for range l.asked {
			had, err := l.party.visit()
			l.said <- visited{had, err}
		}
	}()
	return l, nil
}

func (l *local) ask() error {
	l.asked <- struct{}{}
	return nil
}

func (l *local) had() (int64, error) {
	visited := <-l.said
	return visited.had, visited.err
}

// remote waits in another process: this program, started with -waits.
type remote struct {
	command *exec.Cmd
	asked   io.WriteCloser
	said    *bufio.Reader
}

func newRemote(endpoint string) (*remote, error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	command := exec.Command(binary, "-endpoint", endpoint, "-waits")
	command.Stderr = os.Stderr
	asked, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	said, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &remote{command, asked, bufio.NewReader(said)}, command.Start()
}

func (r *remote) ask() error {
	_, err := fmt.Fprintln(r.asked)
	return err
}

func (r *remote) had() (int64, error) {
	line, err := r.said.ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("the other process ended: %w", err)
	}
	return strconv.ParseInt(strings.TrimSpace(line), 10, 64)
}

// close ends the other process by closing its stdin.
func (r *remote) close() error {
	if err := r.asked.Close(); err != nil {
		return err
	}
	return r.command.Wait()
}

// serve runs the other process: it makes a visit for each line on stdin.
func serve(endpoint string) error {
	party, err := dial(endpoint)
	if err != nil {
		return err
	}
	asked := bufio.NewScanner(os.Stdin)
	for asked.Scan() {
		had, err := party.visit()
		if err != nil {
			return err
		}
		fmt.Println(had)
	}
	return asked.Err()
}
