// Command leaderelection runs one or more candidates of client-go's leader election, for `make bench` and
// `make comparison`. They use a Lease with the default durations of the Kubernetes components, and release
// it on SIGTERM.
//
// When a candidate begins to lead, it prints the time since boot (CLOCK_BOOTTIME). The bench uses the same
// clock, so a measurement does not include the delivery of the message.
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
	flag.StringVar(&candidate.server, "server", "", "a plain-HTTP proxy of the API server, for the same credentials")
	flag.StringVar(&candidate.namespace, "namespace", "", "the namespace of the Lease")
	flag.StringVar(&candidate.lease, "lease", "", "the name of the Lease")
	flag.StringVar(&candidate.identity, "identity", "", "this candidate's name")
	flag.StringVar(&candidate.history, "history", "", "a file for the candidate's history, in the format of tests/history")
	flag.DurationVar(&candidate.timeout, "timeout", 0, "the timeout of each request; the components use half of the renew deadline")
	flag.BoolVar(&candidate.release, "release-on-cancel", true, "release the lead on a stop; no component does this by default")
	candidates := flag.Int("candidates", 1, "the number of candidates; several are named NAME-0 and so on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := candidate.runAll(ctx, *candidates); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// candidate is one candidate of the election.
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
			// Called once the candidate knows the leader: from then on it stands by.
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

// say prints an event and its time, in nanoseconds since boot.
func say(what string) {
	fmt.Printf("%d %s\n", now(), what)
}

// now returns the time of CLOCK_BOOTTIME, in nanoseconds.
func now() uint64 {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &at); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return uint64(at.Nano())
}
