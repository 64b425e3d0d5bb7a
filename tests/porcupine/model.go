package main

import (
	"fmt"

	"github.com/anishathalye/porcupine"
)

// lock is a mutex with increasing tokens: one grant at a time, each with a larger token than all before it.
type lock struct {
	// The largest token of any grant, and the token of the current holder; 0 if the lock is free.
	given, holder uint64
}

// register is the resource that a lock guards. It accepts a write unless it has accepted a newer token.
type register struct {
	token uint64
	value string
}

// model is the sequential specification of a lock or of a register.
func (object object) model() porcupine.Model {
	model := porcupine.Model{
		DescribeOperation: func(input, _ any) string { return input.(*step).String() },
	}
	if object.isLock {
		model.Init = func() any { return lock{} }
		model.Step = func(state, input, _ any) (bool, any) { return state.(lock).step(input.(*step)) }
		model.DescribeState = func(state any) string { return state.(lock).String() }
	} else {
		model.Init = func() any { return register{} }
		model.Step = func(state, input, _ any) (bool, any) { return state.(register).step(input.(*step)) }
		model.DescribeState = func(state any) string { return state.(register).String() }
	}
	return model
}

func (lock lock) step(step *step) (bool, any) {
	switch step.kind {
	case acquired:
		may := lock.holder == 0 && step.token > lock.given
		lock.given, lock.holder = step.token, step.token
		return may, lock
	case ended:
		may := lock.holder == step.token
		lock.holder = 0
		return may, lock
	default:
		return false, lock
	}
}

func (register register) step(step *step) (bool, any) {
	isStale := step.token < register.token
	switch step.kind {
	case accepted, perhapsWritten:
		may := !isStale || step.kind == perhapsWritten
		if !isStale {
			register.token, register.value = step.token, step.value
		}
		return may, register
	case refused:
		return isStale, register
	case seen:
		return register.token == step.token && (step.value == "" || register.value == step.value), register
	default:
		return false, register
	}
}

func (lock lock) String() string {
	if lock.holder == 0 {
		return fmt.Sprintf("free, token %d was the last", lock.given)
	}
	return fmt.Sprintf("held with token %d", lock.holder)
}

func (register register) String() string {
	if register.token == 0 {
		return "nothing written"
	}
	return fmt.Sprintf("token %d (%s)", register.token, register.value)
}
