// Command porcupine checks a history (tests/history) for linearizability. It checks each lock against a
// mutex with increasing tokens, and each register against a fence.
//
// It exits with 0 if the history is linearizable, 1 if it is not, 2 if it cannot be read, and 3 if the
// check timed out.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"github.com/anishathalye/porcupine"
)

// The exit codes.
const (
	linearizable = iota
	notLinearizable
	unreadable
	undecided
)

func main() {
	timeout := flag.Duration("timeout", time.Minute, "the limit for each lock and register; a check that takes longer fails")
	visualize := flag.String("visualize", "", "the file for a picture (HTML) of each object that is not linearizable; the object's name is added to it")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: porcupine [flags] FILE.jsonl|DIRECTORY...")
		flag.PrintDefaults()
	}
	flag.Parse()
	os.Exit(run(flag.Args(), *timeout, *visualize, os.Stdout))
}

func run(paths []string, timeout time.Duration, picture string, out io.Writer) int {
	events, err := read(paths)
	if err != nil {
		fmt.Fprintln(out, err)
		return unreadable
	}
	objects := objectsOf(events)
	worst, operations, locks, registers := linearizable, 0, 0, 0
	for _, object := range objects {
		operations += len(object.operations)
		if object.isLock {
			locks++
		} else {
			registers++
		}
		outcome := check(object, timeout, picture, out)
		// A violation takes precedence over a timeout.
		if outcome == notLinearizable || worst == linearizable {
			worst = outcome
		}
	}
	if operations == 0 {
		fmt.Fprintln(out, "nothing was granted and nothing was written: that shows nothing")
		return unreadable
	}
	fmt.Fprintf(out, "%d operations on %d locks and %d registers: %s\n", operations, locks, registers,
		[]string{"linearizable", "NOT LINEARIZABLE", "", "NOT KNOWN, the time did not suffice"}[worst])
	return worst
}

func check(object object, timeout time.Duration, picture string, out io.Writer) int {
	model := object.model()
	result, info := porcupine.CheckOperationsVerbose(model, object.operations, timeout)
	switch result {
	case porcupine.Ok:
		return linearizable
	case porcupine.Unknown:
		fmt.Fprintf(out, "%s: not decided in %v\n", object.name, timeout)
		return undecided
	}
	fmt.Fprintf(out, "%s: not linearizable\n", object.name)
	explain(object, info, out)
	if picture != "" {
		picture := pictureOf(object, picture)
		if err := porcupine.VisualizePath(model, info, picture); err != nil {
			fmt.Fprintln(out, err)
		} else {
			fmt.Fprintf(out, "  a picture of it: %s\n", picture)
		}
	}
	return notLinearizable
}

// pictureOf returns the file for an object's picture. Each object has its own file.
func pictureOf(object object, picture string) string {
	name := strings.Map(func(letter rune) rune {
		if unicode.IsLetter(letter) || unicode.IsDigit(letter) {
			return letter
		}
		return '-'
	}, object.name)
	ending := filepath.Ext(picture)
	return strings.TrimSuffix(picture, ending) + "-" + name + ending
}

// explain prints how many operations have an order, and the operations that began next.
func explain(object object, info porcupine.LinearizationInfo, out io.Writer) {
	var longest []porcupine.Operation
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, partial := range partition {
			if len(partial) > len(longest) {
				longest = partial
			}
		}
	}
	model := object.model()
	state := model.Init()
	done := map[int]bool{}
	for _, operation := range longest {
		_, state = model.Step(state, operation.Input, operation.Output)
		done[operation.Input.(*step).number] = true
	}
	fmt.Fprintf(out, "  %d of %d operations have an order; it ends in %s. What began next:\n",
		len(longest), len(object.operations), model.DescribeState(state))
	told := 0
	for _, operation := range object.operations {
		step := operation.Input.(*step)
		if !done[step.number] && told < 5 {
			told++
			fmt.Fprintf(out, "    %s\n", step)
		}
	}
}
