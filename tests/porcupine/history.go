package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
)

// event is a line of a history; tests/history/event.rs describes the fields.
type event struct {
	At            uint64  `json:"at"`
	Process       string  `json:"process"`
	Operation     uint64  `json:"operation"`
	Phase         string  `json:"phase"`
	Op            string  `json:"op"`
	Resource      string  `json:"resource"`
	Register      string  `json:"register"`
	Lease         string  `json:"lease"`
	Token         uint64  `json:"token"`
	Value         string  `json:"value"`
	BelievesUntil *uint64 `json:"believes_until"`
	By            string  `json:"by"`
	// Fields of an override. Without them, it applies to all grants that existed then, and to all sidecars.
	Grants     *[]string `json:"grants"`
	Sidecar    string    `json:"sidecar"`
	ClockBound uint64    `json:"clock_bound_ns"`
	Exclusion  *bool     `json:"exclusion"`
}

// read reads files, and all *.jsonl of directories, and sorts the events by time. At equal times in several
// files, the beginnings of operations come first. The order within a single file is kept.
func read(paths []string) ([]event, error) {
	files, err := filesOf(paths)
	if err != nil {
		return nil, err
	}
	var events []event
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if events, err = parse(events, file, text); err != nil {
			return nil, err
		}
	}
	rank := func(event event) int {
		if len(files) > 1 && event.Phase != "invoke" {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(events, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(rank(a), rank(b)))
	})
	return beforeTheEndOfAllClaims(events), nil
}

func filesOf(paths []string) ([]string, error) {
	var files []string
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		found := []string{path}
		if info.IsDir() {
			if found, err = filepath.Glob(filepath.Join(path, "*.jsonl")); err != nil {
				return nil, err
			}
		}
		files = append(files, found...)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no history (*.jsonl) in %q", paths)
	}
	return files, nil
}

// parse reads lines. The last line may be incomplete, if its process was killed while it wrote it.
func parse(events []event, file string, text []byte) ([]event, error) {
	whole := text[:bytes.LastIndexByte(text, '\n')+1]
	for number, line := range bytes.Split(whole, []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		var event event
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("%s:%d is no event: %w", file, number+1, err)
		}
		events = append(events, event)
	}
	return events, nil
}

// After a restore without the bump, the check makes no claims, not even about tokens.
func beforeTheEndOfAllClaims(events []event) []event {
	for index, event := range events {
		if event.Op == "override" && event.By == "restore-without-bump" {
			return events[:index]
		}
	}
	return events
}

// claims are the properties that the run claims.
type claims struct {
	clockBound uint64
	exclusion  bool
}

func claimsOf(events []event) claims {
	claims := claims{exclusion: true}
	for _, event := range events {
		if event.Op == "run" {
			claims.clockBound = max(claims.clockBound, event.ClockBound)
			claims.exclusion = claims.exclusion && (event.Exclusion == nil || *event.Exclusion)
		}
	}
	return claims
}

// never is later than every position.
const never = math.MaxInt64
