package main

import "errors"

type benchCmd struct{}

func (c *benchCmd) Run(s *session) error { return errors.New("x") }
