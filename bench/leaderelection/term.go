package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
)

// term records the only term in which a candidate leads, as the history of an app's lease. client-go
// notifies its app when the lead begins and when it has ended, and not in between. It has no tokens.
type term struct {
	candidate candidate
	file      *os.File
}

func newTerm(candidate candidate) (*term, error) {
	if candidate.history == "" {
		return &term{}, nil
	}
	file, err := os.OpenFile(candidate.history, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	return &term{candidate, file}, err
}

func (term *term) asks() {
	term.record(1, "invoke", "acquire", map[string]any{"resource": term.candidate.lease})
}

func (term *term) begins() {
	term.record(1, "ok", "acquire", map[string]any{
		"resource": term.candidate.lease, "lease": term.candidate.identity, "believes_until": uint64(math.MaxUint64),
	})
}

func (term *term) ends() {
	term.record(2, "info", "believes-end", map[string]any{"lease": term.candidate.identity})
}

// record writes one line immediately, like tests/history.
func (term *term) record(operation int, phase, op string, fields map[string]any) {
	if term.file == nil {
		return
	}
	fields["at"], fields["process"], fields["operation"] = now(), term.candidate.identity, operation
	fields["phase"], fields["op"] = phase, op
	line, err := json.Marshal(fields)
	if err == nil {
		_, err = term.file.Write(append(line, '\n'))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
