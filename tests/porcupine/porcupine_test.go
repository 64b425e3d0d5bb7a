package main

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// story is a handwritten history; a lease is named after its token.
type story struct {
	lines []string
	begun int
}

func (s *story) line(at int, phase, op, fields string, arguments ...any) {
	fields = fmt.Sprintf(fields, arguments...)
	s.lines = append(s.lines, fmt.Sprintf(`{"at":%d,"process":"p%d","operation":1,"phase":%q,"op":%q,%s}`, at, s.begun, phase, op, fields))
}

// operation adds the begin and the end of an operation. With an empty end, its process was killed.
func (s *story) operation(from, to int, end, op, begun, ended string, arguments ...any) *story {
	s.begun++
	s.line(from, "invoke", op, begun)
	if end != "" {
		s.line(to, end, op, ended, arguments...)
	}
	return s
}

func (s *story) acquire(from, to, token, until int) *story {
	return s.operation(from, to, "ok", "acquire", `"resource":"r"`,
		`"resource":"r","lease":"l%d","token":%d,"believes_until":%d`, token, token, until)
}

func (s *story) of(lease string, from, to, token, until int) *story {
	return s.operation(from, to, "ok", "acquire", `"resource":"r"`,
		`"resource":"r","lease":%q,"token":%d,"believes_until":%d`, lease, token, until)
}

func (s *story) unanswered(from int) *story {
	return s.operation(from, 0, "", "acquire", `"resource":"r"`, "")
}

func (s *story) renew(from, to, token, until int) *story {
	lease := fmt.Sprintf(`"lease":"l%d"`, token)
	return s.operation(from, to, "ok", "renew", lease, lease+`,"believes_until":%d`, until)
}

func (s *story) release(from, to, token int, end string) *story {
	lease := fmt.Sprintf(`"lease":"l%d"`, token)
	return s.operation(from, to, end, "release", lease, lease)
}

func (s *story) write(from, to, token int, value, end string) *story {
	write := fmt.Sprintf(`"register":"r","lease":"l%d","token":%d,"value":%q`, token, token, value)
	return s.operation(from, to, end, "write", write, write)
}

func (s *story) read(from, to, token int, value string) *story {
	return s.operation(from, to, "ok", "read", `"register":"r"`, `"register":"r","token":%d,"value":%q`, token, value)
}

func (s *story) info(at int, op, fields string) *story {
	s.begun++
	s.line(at, "info", op, fields)
	return s
}

// servedBy records which sidecar serves the process with this number.
func (s *story) servedBy(process int, sidecar string) *story {
	s.lines = append(s.lines, fmt.Sprintf(`{"at":0,"process":"p%d","operation":9,"phase":"info","op":"served-by","sidecar":%q}`, process, sidecar))
	return s
}

func told() *story { return &story{} }

// outcome checks the story from a file, like the command.
func (s *story) outcome(t *testing.T, arguments ...string) (int, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "history.jsonl")
	if err := os.WriteFile(file, []byte(strings.Join(s.lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	picture := ""
	if len(arguments) > 0 {
		picture = arguments[0]
	}
	var out strings.Builder
	return run([]string{file}, 20*time.Second, picture, &out), out.String()
}

func TestRightHistoriesAreAccepted(t *testing.T) {
	right := map[string]*story{
		"one after the other": told().acquire(0, 10, 1000, 100).renew(50, 60, 1000, 150).write(60, 70, 1000, "a", "ok").
			release(80, 90, 1000, "ok").acquire(20, 85, 2000, 120).write(90, 95, 2000, "b", "ok").read(96, 97, 2000, "b"),
		"an acquire without an answer may have happened": told().unanswered(0).acquire(20, 30, 2000, 90),
		"an earlier request may have the smaller token": told().acquire(0, 50, 1000, 60).acquire(5, 100, 2000, 120).
			acquire(4, 70, 1500, 90),
		"a late write is refused": told().acquire(0, 10, 1000, 100).acquire(50, 110, 2000, 200).
			write(110, 120, 2000, "b", "ok").write(130, 140, 1000, "a", "fail").read(141, 142, 2000, "b"),
		"a write without an answer is seen": told().acquire(0, 10, 1000, 100).write(20, 0, 1000, "a", "").
			read(30, 40, 0, "").read(50, 60, 1000, "a"),
		"a write without an answer never happens": told().acquire(0, 10, 1000, 100).write(20, 30, 1000, "a", "unknown").
			acquire(105, 110, 2000, 200).read(112, 113, 0, "").write(115, 120, 2000, "b", "ok").read(130, 140, 2000, "b"),
		"writes at one time have any order": told().acquire(0, 10, 1000, 100).acquire(105, 110, 2000, 200).
			write(90, 140, 1000, "a", "ok").write(110, 120, 2000, "b", "ok"),
		"what a person overrode": told().acquire(0, 10, 1000, 100).info(20, "override", `"resource":"r","by":"force"`).
			acquire(30, 40, 2000, 100),
		"a grant that a person ended by name": told().acquire(0, 10, 1000, 100).info(20, "override", `"resource":"r","grants":["l1000"],"by":"force"`).
			acquire(30, 40, 2000, 100),
		"a grant that the outcome names": told().acquire(0, 10, 1000, 100).operation(20, 25, "ok", "override", `"resource":"r","by":"delete"`,
			`"resource":"r","grants":["l1000"],"by":"delete"`).acquire(30, 40, 2000, 100),
		"a sidecar whose clock leaps": told().acquire(0, 10, 1000, 100).servedBy(1, "s").info(20, "override", `"sidecar":"s","by":"clock-leap"`).
			acquire(30, 40, 2000, 100),
		"a further lease of a grant that a person ended": told().of("g.0", 0, 10, 1000, 20).info(30, "override", `"resource":"r","by":"delete"`).
			acquire(40, 50, 2000, 100).of("g.1", 60, 70, 1001, 100),
		"clocks out of their bounds": told().info(0, "run", `"seed":1,"exclusion":false`).acquire(1, 10, 1000, 100).
			acquire(20, 30, 2000, 100),
		"clocks that differ within their bound": told().info(0, "run", `"seed":1,"clock_bound_ns":5`).acquire(1, 10, 1000, 100).
			acquire(20, 95, 2000, 200),
		"a lease that was lost early": told().acquire(0, 10, 1000, 100).info(50, "lost", `"lease":"l1000"`).
			acquire(20, 60, 2000, 90),
		"a release whose answer never came": told().acquire(0, 10, 1000, 100).release(50, 0, 1000, "").acquire(20, 60, 2000, 90),
		"nothing is claimed after a restore without the bump": told().acquire(0, 10, 2000, 100).
			info(20, "override", `"by":"restore-without-bump"`).acquire(30, 40, 1000, 100),
	}
	for name, story := range right {
		t.Run(name, func(t *testing.T) {
			if outcome, out := story.outcome(t); outcome != linearizable {
				t.Errorf("%d: %s", outcome, out)
			}
		})
	}
}

func TestWrongHistoriesAreRefused(t *testing.T) {
	wrong := map[string]struct {
		story *story
		words string
	}{
		"two at one time":          {told().acquire(0, 10, 1000, 100).acquire(20, 99, 2000, 200), "lock r: not linearizable"},
		"a renewal counts":         {told().acquire(0, 10, 1000, 50).renew(20, 30, 1000, 100).acquire(5, 90, 2000, 200), "lock r: not"},
		"a token that falls":       {told().acquire(0, 10, 2000, 20).acquire(30, 40, 1000, 50), "lock r: not"},
		"a token given twice":      {told().acquire(0, 10, 1000, 20).operation(30, 40, "ok", "acquire", `"resource":"r"`, `"resource":"r","lease":"other","token":1000,"believes_until":50`), "lock r: not"},
		"beyond the clocks' bound": {told().info(0, "run", `"seed":1,"clock_bound_ns":5`).acquire(1, 10, 1000, 100).acquire(20, 94, 2000, 200), "lock r: not"},
		"after an override": {told().acquire(0, 10, 1000, 100).info(20, "override", `"resource":"r","by":"force"`).
			acquire(30, 40, 2000, 100).acquire(50, 60, 3000, 100), "lock r: not"},
		"a further lease of a grant that is over": {told().of("g.0", 0, 10, 1000, 20).acquire(40, 50, 2000, 100).
			of("g.1", 60, 70, 1001, 100), "lock r: not"},
		"an override of another grant": {told().acquire(0, 10, 1000, 100).info(20, "override", `"resource":"r","grants":["other"],"by":"force"`).
			acquire(30, 40, 2000, 100), "lock r: not"},
		"an override without an effect": {told().acquire(0, 10, 1000, 100).operation(20, 25, "fail", "override", `"resource":"r","by":"delete"`,
			`"resource":"r","by":"delete"`).acquire(30, 40, 2000, 100), "lock r: not"},
		"another sidecar's clock leaps": {told().acquire(0, 10, 1000, 100).servedBy(1, "t").info(20, "override", `"sidecar":"s","by":"clock-leap"`).
			acquire(30, 40, 2000, 100), "lock r: not"},
		"an override of another lock": {told().acquire(0, 10, 1000, 100).info(20, "override", `"resource":"s","by":"force"`).
			acquire(30, 40, 2000, 100), "lock r: not"},
		"an older token is taken after a newer one": {told().write(110, 120, 2000, "b", "ok").write(121, 130, 1000, "a", "ok"),
			"register r: not linearizable"},
		"the newest token is refused": {told().write(110, 120, 2000, "b", "ok").write(121, 130, 2000, "a", "fail"), "register r: not"},
		"a write is lost":             {told().write(10, 20, 1000, "a", "ok").write(21, 30, 1000, "b", "ok").read(31, 40, 1000, "a"), "register r: not"},
		"a write comes back": {told().write(10, 0, 1000, "a", "").write(21, 30, 2000, "b", "ok").read(31, 40, 2000, "b").
			read(41, 50, 1000, "a"), "register r: not"},
		"a read of what was never written": {told().write(10, 20, 1000, "a", "ok").read(31, 40, 2000, "c"), "register r: not"},
	}
	for name, it := range wrong {
		t.Run(name, func(t *testing.T) {
			outcome, out := it.story.outcome(t)
			if outcome != notLinearizable || !strings.Contains(out, it.words) {
				t.Errorf("%d: %s", outcome, out)
			}
		})
	}
}

func TestViolationIsExplainedAndDrawn(t *testing.T) {
	picture := filepath.Join(t.TempDir(), "picture.html")
	_, out := told().acquire(0, 10, 1000, 100).acquire(20, 99, 2000, 200).
		write(110, 120, 2000, "b", "ok").write(121, 130, 1000, "a", "ok").outcome(t, picture)
	for _, words := range []string{"it ends in held with token 1000", "acquire token 2000 by p2, from 20 to 99", "end of token 1000"} {
		if !strings.Contains(out, words) {
			t.Errorf("no %q in %s", words, out)
		}
	}
	for name, words := range map[string]string{"picture-lock-r.html": "acquire token 2000", "picture-register-r.html": "write accepted, token 1000"} {
		html, err := os.ReadFile(filepath.Join(filepath.Dir(picture), name))
		if err != nil || !strings.Contains(string(html), words) {
			t.Errorf("no picture %s: %v", name, err)
		}
	}
}

// Writes with unknown outcomes, then a read that none of them explains. The number of orders to try is too
// large, and an undecided check does not pass.
func TestTimedOutCheckDoesNotPass(t *testing.T) {
	story := told()
	for number := range 40 {
		story.write(number, 0, 1000, fmt.Sprint(number), "")
	}
	story.read(100, 110, 1000, "never written")
	object := objectsOf(mustParse(t, story))[0]
	var out strings.Builder
	if outcome := check(object, 50*time.Millisecond, "", &out); outcome != undecided {
		t.Errorf("%d: %s", outcome, out.String())
	}
	if !strings.Contains(out.String(), "register r: not decided in 50ms") {
		t.Error(out.String())
	}
}

func mustParse(t *testing.T, story *story) []event {
	t.Helper()
	events, err := parse(nil, "story", []byte(strings.Join(story.lines, "\n")+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	return events
}

func TestUnreadableHistoryIsAnError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "history.jsonl")
	whole := strings.Join(told().acquire(0, 10, 1000, 100).lines, "\n")
	var out strings.Builder
	for text, expected := range map[string]int{
		whole + "\n{\"at\":3,\"pro":   linearizable,
		whole + "\n{\"at\":3,\"pro\n": unreadable,
		"":                            unreadable,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if outcome := run([]string{file}, time.Second, "", &out); outcome != expected {
			t.Errorf("%q: %d: %s", text, outcome, out.String())
		}
	}
	if outcome := run([]string{t.TempDir()}, time.Second, "", &out); outcome != unreadable {
		t.Errorf("%d", outcome)
	}
}

// This program reads the same format that the Rust tests write (tests/history/files.rs).
func TestHistoryReadsBackAsWritten(t *testing.T) {
	events, err := read([]string{"../history/one-of-each.jsonl"})
	if err != nil {
		t.Fatal(err)
	}
	if claims := claimsOf(events); claims.clockBound != 5 || claims.exclusion {
		t.Errorf("%+v", claims)
	}
	until := uint64(90)
	granted := event{
		At: 3, Process: "app-1.0", Operation: 2, Phase: "ok", Op: "acquire",
		Resource: "r", Lease: "l.0", Token: 1000, BelievesUntil: &until,
	}
	if !reflect.DeepEqual(events[2], granted) {
		t.Errorf("%+v", events[2])
	}
	// The last event precedes a restore without the bump; the restore and all later events are dropped.
	if last := events[len(events)-1]; last.Op != "override" || last.By != "force" || last.Resource != "r" {
		t.Errorf("%+v", last)
	}
}

// Four thousand grants of one lock, with a write without an answer in each tenth turn.
func TestALongHistoryIsDecided(t *testing.T) {
	story := told()
	for turn := range 2_000 {
		at, token := turn*100, (turn+1)*1000
		story.acquire(at+1, at+10, token, at+150).write(at+20, at+30, token, fmt.Sprint(turn), "ok")
		if turn%10 == 0 {
			story.write(at+31, 0, token, fmt.Sprint("lost", turn), "")
		}
		story.release(at+80, at+95, token, "ok").acquire(at+5, at+90, token+500, at+99)
	}
	begun := time.Now()
	if outcome, out := story.outcome(t); outcome != linearizable {
		t.Errorf("%d: %s", outcome, out)
	}
	t.Logf("took %v", time.Since(begun))
}
