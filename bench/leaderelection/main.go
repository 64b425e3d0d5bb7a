// Command leaderelection is one candidate of client-go's leader election, or several, for `make bench`
// to measure and for `make comparison`: a Lease, with the durations that the Kubernetes components have
// by default, released on SIGTERM.
//
// When it begins to lead it says so, with the time that the machine counts since it was booted
// (CLOCK_BOOTTIME): the bench counts on the same clock, so nothing on the way to it is measured.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// The defaults of kube-controller-manager, kube-scheduler and controller-runtime.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

func main() {
	var candidate candidate
	flag.StringVar(&candidate.kubeconfig, "kubeconfig", "", "how to reach the API server")
	flag.StringVar(&candidate.server, "server", "", "a plain-HTTP proxy to reach it by, with the same credentials")
	flag.StringVar(&candidate.namespace, "namespace", "", "the namespace of the Lease")
	flag.StringVar(&candidate.lease, "lease", "", "the name of the Lease")
	flag.StringVar(&candidate.identity, "identity", "", "this candidate's name")
	flag.StringVar(&candidate.history, "history", "", "a file for when it led, as tests/history has it")
	flag.DurationVar(&candidate.timeout, "timeout", 0, "for each request; the components have half of the renew deadline")
	flag.BoolVar(&candidate.release, "release-on-cancel", true, "release the lead when it stops, as no component does by default")
	candidates := flag.Int("candidates", 1, "so many of them, NAME-0 and so on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := candidate.runAll(ctx, *candidates); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// candidate is one who wants to lead.
type candidate struct {
	kubeconfig, server, namespace, lease, identity, history string
	timeout                                                 time.Duration
	release                                                 bool
}

func (candidate candidate) runAll(ctx context.Context, candidates int) error {
	if candidates == 1 {
		return candidate.run(ctx)
	}
	ended := make(chan error)
	for number := range candidates {
		one := candidate
		one.identity = fmt.Sprintf("%s-%d", candidate.identity, number)
		go func() { ended <- one.run(ctx) }()
	}
	var all error
	for range candidates {
		all = errors.Join(all, <-ended)
	}
	return all
}

func (candidate candidate) run(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", candidate.kubeconfig)
	if err != nil {
		return err
	}
	config.Timeout = candidate.timeout
	if candidate.server != "" {
		config.Host, config.TLSClientConfig = candidate.server, rest.TLSClientConfig{}
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	term, err := newTerm(candidate)
	if err != nil {
		return err
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: candidate.namespace, Name: candidate.lease},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: candidate.identity},
		},
		LeaseDuration:   leaseDuration,
		RenewDeadline:   renewDeadline,
		RetryPeriod:     retryPeriod,
		ReleaseOnCancel: candidate.release,
		Name:            candidate.lease,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { say("leading"); term.begins() },
			OnStoppedLeading: term.ends,
			// Called once the candidate knows who leads: from then on it stands by.
			OnNewLeader: func(leader string) { say("knows " + leader) },
		},
	})
	if err != nil {
		return err
	}
	term.asks()
	elector.Run(ctx)
	return nil
}

// say prints what happened and when, in nanoseconds since the machine was booted.
func say(what string) {
	fmt.Printf("%d %s\n", now(), what)
}

// now is CLOCK_BOOTTIME.
func now() uint64 {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &at); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return uint64(at.Nano())
}
