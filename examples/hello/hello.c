/* Greets whoever is named, else the world. */
#include <stdio.h>

int main(int count, char **arguments)
{
    printf("hello, %s\n", count > 1 ? arguments[1] : "world");
    return 0;
}
