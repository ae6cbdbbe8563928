package main

import "errors"

type serveCmd struct{}

func (c *serveCmd) Run(s *session) error { return errors.New("x") }
